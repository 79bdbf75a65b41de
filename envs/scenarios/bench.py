"""Named, versioned scenarios on which agents are compared: machines x truths x loads, as data.

A version never changes once it is published: what would change its figures gets a new one. Its `fingerprint`,
which every result holds, tells that two results are of the same scenarios.

No agent was tuned on the machines with seeds from 1000 on (`families`). Agents are told the machine's cores,
as a tuner knows those of its own. Public traces (`public_traces`) are not part of this project: whoever has
their files gives the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from envs.scenarios.public_traces import TRACES


@dataclass(frozen=True)
class BenchScenario:
    """One row of a bench; machine, truth and workload are as `rrl-compare` takes them."""

    machine: str
    truth: str = "model"
    workload: str = "stationary"
    trace: str | None = None  # one of `TRACES`, in place of the workload
    decisions: int = 100


@dataclass(frozen=True)
class VersionedBench:
    """A version of the bench: its scenarios by name."""

    version: str
    scenarios: Mapping[str, BenchScenario]

    @property
    def fingerprint(self) -> str:
        """Changes with anything that would change a result: scenarios, and contents of traces."""
        named = {name: asdict(scenario) for name, scenario in self.scenarios.items()}
        traces = {each.trace: TRACES[each.trace].sha256 for each in self.scenarios.values() if each.trace}
        text = json.dumps([self.version, named, traces], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


V1 = VersionedBench(
    "v1",
    {
        "family": BenchScenario("family:1200-1203"),
        "family-shared": BenchScenario("family:1204-1207", "processor-sharing"),
        "family-varying": BenchScenario("family:1208-1211", "variation"),
        "family-backlog": BenchScenario("family:1212-1213", "backlog", "dynamic"),
        "family-batching": BenchScenario("family:1214-1215", "batching", "wiki"),
        "family-two-sizes": BenchScenario("family:1216-1219", "two-sizes"),
        "family-slowdown": BenchScenario("family:1220-1221", "slowdown", decisions=250),
        "usl": BenchScenario("usl:1200-1203", "model", "wiki"),
        "roofline": BenchScenario("roofline:1200-1203"),
        "served": BenchScenario("profiled:1200-1204", "batches"),
        "served-wave": BenchScenario("profiled:1205-1209", "batches", "wiki"),
        "wikipedia-days": BenchScenario("family:1222-1223", trace="wikipedia-days"),
        "wikipedia-hour": BenchScenario("usl:1204-1205", "backlog", trace="wikipedia-hour"),
        "azure-conversation": BenchScenario("profiled:1210-1214", "batches", trace="azure-conversation"),
    },
)

BENCHES: Mapping[str, VersionedBench] = {V1.version: V1}
