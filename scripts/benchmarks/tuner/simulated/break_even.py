"""`break-even`: when tuning has paid for itself against a competent start, from light to heavy load.

The start is the rule of thumb: an instance a core, one thread each. One run leaves it alone, and another one
tunes from it, with the same requests. The load is a given share of the largest capacity of any configuration.

| machines | cores | configurations |
|---|---|---|
| `family` | 6 to 16 | 1,000, without batches |
| `small` | 2 | 32, batches of up to 8 (`envs.scenarios.small_machines`) |

| column | over machines | meaning |
|---|---|---|
| gain | geometric mean | the rule's mean latency over the agent's, all decisions: above 1 tuning pays |
| after 30 | geometric mean | the same from decision 30 on |
| least | | the least gain of any machine |
| cheaper | count | machines where all decisions together cost less than the rule |
| even | median | decision from which the agent's sum of latencies stays below the rule's |

    scripts/bench break-even [--seeds 0-19] [--sources family small] [--utilisations 0.2 0.5 0.9]
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from baselines import make_agent
from baselines.comparison.run import compile_kernels
from baselines.comparison.summary import WARM_UP
from envs.scenarios.families import scenarios, space_of
from envs.scenarios.paper_load import RATE_PER_S, at_utilisation
from envs.scenarios.scenario import Scenario
from envs.scenarios.small_machines import CORES, random_machine
from rrl.agent import Task, live
from rrl.guided.first_choice import rule_of_thumb
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.serving.served_agents import DEFAULT, RULE
from serving_adapter.flags.parsing import fail, parse
from serving_adapter.load.arrivals import Poisson

SMALL = ConfigurationSpace.parse("instances=1:4,intra_op_threads=1:2,max_batch_size=1,2,4,8")


@dataclass(frozen=True)
class Options:
    """When tuning has paid for itself against the rule of thumb."""

    seeds: str = "0-19"
    """Of the machines of every source."""
    sources: tuple[str, ...] = ("family", "small")
    """Kinds of machines."""
    utilisations: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """Shares of the largest capacity of any configuration."""
    decisions: int = 100
    """Of a run."""

    def __post_init__(self) -> None:
        if not all(0 < each < 1 for each in self.utilisations):
            raise ValueError("--utilisations must lie between 0 and 1")
        if not set(self.sources) <= {"family", "small"}:
            raise ValueError(f"--sources must be of family and small, got {' '.join(self.sources)}")
        if self.decisions <= WARM_UP:
            raise ValueError(f"--decisions must be above {WARM_UP}, got {self.decisions}")


class TunedMachine(NamedTuple):
    """A machine, the configurations to choose among, and the largest batch that defines its capacity."""

    scenario: Scenario
    space: ConfigurationSpace
    largest_batch: int


class BreakEven(NamedTuple):
    """What tuning brought at one utilisation."""

    gain: float
    after_30: float
    least: float
    cheaper: int
    even: float  # infinite where the median machine is never even
    machines: int

    @classmethod
    def of(cls, tuned_ms: np.ndarray, rule_ms: np.ndarray) -> BreakEven:
        """Of (machines, decisions) mean latencies."""
        gains = rule_ms.sum(axis=1) / tuned_ms.sum(axis=1)
        after = rule_ms[:, WARM_UP:].sum(axis=1) / tuned_ms[:, WARM_UP:].sum(axis=1)
        even = [_even(*pair) for pair in zip(tuned_ms, rule_ms, strict=True)]
        return cls(
            geometric_mean(gains),
            geometric_mean(after),
            float(gains.min()),
            int((gains > 1).sum()),
            float(np.median(even)),
            len(gains),
        )


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    try:
        family = scenarios(f"family:{options.seeds}")
    except ValueError as error:
        fail(str(error))
    compile_kernels()
    print(f"commit {commit_in_force()}, seeds {options.seeds}, {options.decisions} decisions")
    print("machines  utilisation   gain  after 30  least  cheaper  even")
    found = []
    for source in options.sources:
        machines = [(_of_the_family if source == "family" else _small)(each) for each in family]
        for utilisation in options.utilisations:
            runs = [_latencies_ms(each, utilisation, options.decisions) for each in machines]
            line = BreakEven.of(*(np.array(each) for each in zip(*runs, strict=True)))
            found.append(line)
            print(
                f"{source:8} {utilisation:12.1f} {line.gain:6.3f} {line.after_30:9.3f} {line.least:6.3f}"
                f" {line.cheaper:>4}/{line.machines:<3} {line.even:5.0f}",
                flush=True,
            )
    return {
        "value": round(geometric_mean(each.gain for each in found), 3),
        "unit": "the rule of thumb's latency over that of tuning from it, geometric mean",
        "reach": 1.0,
        "holds": all(each.gain > 1 for each in found),
    }


def _of_the_family(scenario: Scenario) -> TunedMachine:
    return TunedMachine(scenario, space_of("model", scenario.machine), largest_batch=1)


def _small(like: Scenario) -> TunedMachine:
    """The machine of 2 cores of the same seed."""
    seed = int(like.name.rpartition("-")[2])
    scenario = Scenario(random_machine(seed)[0], f"small-{seed}", cores=CORES)
    return TunedMachine(scenario, SMALL, int(scenario.machine.batch_size[-1]))


def _latencies_ms(tuned: TunedMachine, utilisation: float, decisions: int) -> list[np.ndarray]:
    """(decisions,) mean latencies of the tuned run and of the rule's."""
    scenario, space, largest_batch = tuned
    fast = replace(scenario, machine=at_utilisation(scenario.machine, utilisation, largest_batch))
    start = rule_of_thumb(space, scenario.cores, {})
    assert start is not None  # the family's cores are known
    seed = int.from_bytes(scenario.name.encode(), "little") % 2**32
    found = []
    for name in (DEFAULT, RULE):
        agent = make_agent(name, Task(space, MeanLatency(), scenario.cores), seed)
        env = fast.environment(space, MeanLatency(), Poisson(RATE_PER_S), 100, space.configuration(start))
        transitions = live(agent, env, decisions, seed)
        found.append(np.array([each.measurement.latency.mean_ms for each in transitions]))
        agent.close()
    return found


def _even(tuned_ms: np.ndarray, rule_ms: np.ndarray) -> float:
    """The decision from which the sum of the first stays below that of the second; infinite if never."""
    above = np.flatnonzero(np.cumsum(tuned_ms) >= np.cumsum(rule_ms))
    first = 0 if not len(above) else int(above[-1]) + 1
    return first if first < len(tuned_ms) else math.inf
