"""Named, versioned scenarios on which agents are compared: machines x truths x loads, as data.

A version never changes once it is published: what would change its figures gets a new one. Its `fingerprint`,
which every result holds, tells that two results are of the same scenarios.

No agent was tuned on the machines with seeds from 1000 on (`families`). Agents are told the machine's cores,
as a tuner knows those of its own. A public trace is not part of this
project. Whoever has its file gives the folder, and the file is known by its checksum, whatever it is called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class PublicTrace:
    """Arrivals that were published, and where they are from."""

    sha256: str
    what: str
    source: str  # repository, path and licence
    cite: str


TRACES: Mapping[str, PublicTrace] = {
    "wikipedia-days": PublicTrace(
        "238fd43ab23f153465d159e9ab750dbdb847768cf7f7c67356e17342b0504f59",
        "requests of Wikipedia by the minute, 12 days of September 2007 (columns minute,requests)",
        "github.com/dionatrafk/model_evaluation, http_requests_wikipedia/trace1.csv; no licence stated",
        "Urdaneta, Pierre, van Steen: Wikipedia workload analysis for decentralized hosting, 2009",
    ),
    "wikipedia-hour": PublicTrace(
        "2a9e72ec5c4dbbe8699171347b72662b9dd878c65f5e14f96ac734bddb63c144",
        "the same service by 10 ms, one hour from 2007-09-18 22:15 UTC (column requests)",
        "github.com/deib-polimi/RAS-real, generators/wiki.1190153705.csv; no licence stated",
        "Urdaneta, Pierre, van Steen: Wikipedia workload analysis for decentralized hosting, 2009",
    ),
    "azure-conversation": PublicTrace(
        "b15cdc313463f00b64a497198bbdbe898df0ddf906ee1d14c5b9dc8b39a39db3",
        "19,366 requests of a conversation service, 2023 (columns t_s,context_tokens,generated_tokens)",
        "github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv, times in seconds; CC-BY 4.0",
        "Patel et al.: Splitwise, ISCA 2024",
    ),
}


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


def find_traces(folder: Path) -> dict[str, Path]:
    """The public traces among the CSV files of a folder, by name. ValueError if there is no such folder."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the one that holds the public traces")
    by_checksum = {trace.sha256: name for name, trace in TRACES.items()}
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum in by_checksum:
            found[by_checksum[checksum]] = path
    return found
