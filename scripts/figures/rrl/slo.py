"""Limits of the p95 that are equally tight on every machine, and how runs keep them (RRL, Figs. 14 and 15).

The paper does not say what the best p95 was, so its limits cannot be taken over.

| limit | paper, in ms of its servers | here |
|---|---|---|
| strict | 550 on CPU, 520 on GPU | `STRICT` times the lowest p95 of any configuration at the mean load |
| loose | 1,850 to 3,200 | 1850/520 times the strict one, as for the paper's Inception on a GPU |

The pictures show latency divided by the limit. A violation is an interval whose measured p95 is above it. RRL
is to settle within a tenth of the run. So violations are counted over the whole run, and after that tenth.

An SLO counts as guaranteed where less than `KEPT_BELOW_PERCENT` of the whole run's intervals are violations.
It is partly guaranteed where that holds after the search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.scenarios.families import scenarios
from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Simulation
from rrl.space import Configuration
from scripts.figures.result import FAILS, PARTLY, REPRODUCES
from scripts.figures.rrl import rules
from scripts.figures.rrl.long_runs import PanelRuns

STRICT = 1.5
LOOSE = STRICT * 1850 / 520
SEARCH = 0.1  # of the run; 200 of 2,000 decisions
KEPT_BELOW_PERCENT = 1.0  # of the intervals


@dataclass(frozen=True)
class RunsWithLimits:
    """The runs of a panel with one run on each machine, and each machine's limit."""

    runs: PanelRuns
    limits_ms: np.ndarray  # (runs,)

    @property
    def search(self) -> int:
        """The decisions that are left out of what is counted after the search."""
        return round(SEARCH * self.runs.oracle_ms.shape[1])

    def violations(self, contender: str) -> np.ndarray:
        """(runs, decisions) bool. An interval without any answer is one."""
        within: np.ndarray = self.runs.of(contender, "p95_ms") <= self.limits_ms[:, None]
        return ~within

    def violated_percent(self, contender: str) -> tuple[np.ndarray, np.ndarray]:
        """(runs,) of the intervals of the whole run, and of those after the search."""
        violations = 100.0 * self.violations(contender)
        return violations.mean(axis=1), violations[:, self.search :].mean(axis=1)

    def verdict_of_guarantee(self, contender: str) -> str:
        """Whether a contender's runs guarantee the SLO."""
        whole, later = (percent.mean() for percent in self.violated_percent(contender))
        kept = REPRODUCES if whole < KEPT_BELOW_PERCENT else PARTLY if later < KEPT_BELOW_PERCENT else FAILS
        return rules.judged(self.runs.count, kept)

    def by_limit(self, contender: str, field: str) -> np.ndarray:
        """(runs, decisions): a latency divided by the machine's limit."""
        quotient: np.ndarray = self.runs.of(contender, field) / self.limits_ms[:, None]
        return quotient

    def request_latencies(self, contender: str) -> list[np.ndarray]:
        """For each run the (requests,) latencies of all its requests, divided by the limit.

        A comparison keeps only summaries of intervals. So every interval is simulated once more, with
        arrivals at its rate, under the configuration that the agent chose for it.
        """
        panel = self.runs.panel
        latencies = []
        for k, text in enumerate(panel.machines):
            (scenario,) = scenarios(text, panel.truth)
            rng = np.random.default_rng([k, 14])
            chosen = self.runs.decisions[contender][k]
            of_intervals = [
                interval_latencies_ms(
                    scenario.machine,
                    {name: int(row[name]) for name in self.runs.knobs},
                    rng.exponential(1 / row["arrival_rate_per_s"], panel.requests),
                )
                for row in chosen
            ]
            latencies.append(np.concatenate(of_intervals) / self.limits_ms[k])
        return latencies


def interval_latencies_ms(machine: Machine, configuration: Configuration, gaps_s: np.ndarray) -> np.ndarray:
    """(requests,) latencies of one interval that starts with an empty server and answers all requests."""
    outcome = Simulation(machine).run(np.cumsum(gaps_s), None, configuration, np.inf)
    result: np.ndarray = 1e3 * (outcome.finish_s - outcome.arrival_s)
    return result
