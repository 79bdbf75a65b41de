"""The machines of the comparisons: a random family and its judges, and truths that depart from the model.

| source | machines |
|---|---|
| `family` | those of this page: agents are tuned on their like, and the shipped prior is learned from some |
| `usl`, `roofline` | of another structure (`usl`, `roofline`): no prior is learned from them |
| `profiled` | five served models as they were measured (`profiled`): nor from them |

Seeds below 1000 are for tuning agents, seeds from 1000 on for judging them. No setting of any agent may be
chosen by a judging machine. With i inter-op and a intra-op threads, n busy instances and batches of b:

    S = w · P(i, a) · O(n, i, a) · M(n) · G(b) · exp(r · F(i, a, n, b))

    P = (σ + (1 - σ)/a + κ·(a - 1)) · (1 - φ + φ/i)   Amdahl's law, and the cost of threads
    O = max(1, n·(i·a)^η / cores)^ω                   over-subscription: threads take turns, at a loss
    M = 1 + μ·((n - 1)/cores)^ν                       interference of neighbours (memory bandwidth, caches)
    G = g + (1 - g)·b                                 batching: the share g of the work is paid once a batch
    F                                                 a smooth Gaussian random field over the logarithms

| symbol | drawn from | meaning |
|---|---|---|
| cores | 6 .. 16 | number of cores (`paper_load`) |
| σ | [0.02, 0.30] | serial fraction of an operator |
| κ | [0, 0.015] | cost of each further thread of an operator, as a share of its work |
| φ | [0.1, 0.8] | share of the model's work that lies in parallel branches |
| η | [0.4, 0.9] | how busy a batch keeps its threads: 1 when idle ones spin |
| ω | [1, 1.2] | loss by over-subscription: 1 is none |
| μ, ν | [0.1, 1.5], [0.7, 1.3] | interference and how it grows |
| g | [0.1, 0.5] | batching gain |
| r | [0.05, 0.2] | roughness |
| u | [0.25, 0.65] | utilisation, which fixes w (`paper_load`) |

| truth | how it departs |
|---|---|
| `model` | not at all: FCFS, constant service times, an empty server at the beginning of each interval |
| `processor-sharing` | batches in service share the processors from moment to moment |
| `variation` | lognormal service times, squared coefficient of variation 0.5 |
| `backlog` | requests not served in an interval wait into the next |
| `batches` | not at all, and the knobs are those of batching |
| `batching` | likewise, with g in [0.75, 0.95], and so slow that u is in [0.4, 0.7] with batches of up to 8 |
| `two-sizes` | a quarter of the requests is four times as large; the table holds for the mean size |
| `slowdown` | from decision 150 on everything takes 1.25 to 1.6 times as long |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from envs.scenarios import paper_load
from envs.scenarios.paper_load import at_utilisation
from envs.scenarios.profiled import profiled_machine
from envs.scenarios.roofline import roofline_machine
from envs.scenarios.scenario import Scenario
from envs.scenarios.usl import usl_machine
from envs.simulated import PAPER_SPACE
from rrl.queueing.machine import Machine, smooth_field
from rrl.space import ConfigurationSpace, Knob
from serving_adapter.load.sizes import TwoSizes

RATE_PER_S = paper_load.RATE_PER_S  # the load that the machines are made for
FIRST_FOR_JUDGING = 1000

BATCHING_SPACE = (
    "instances=1:8,intra_op_threads=1,2,4,8,max_batch_size=1,2,4,8,16,32,"
    "max_queue_delay_us=0,10000,30000,100000,300000"
)

_CORES, _SHAPE, _BATCHING, _SLOWDOWN = range(4)  # independent random streams of one seed

SCV = 0.5  # squared coefficient of variation of service times in the truth "variation"
SLOWDOWN_AT = 150  # decisions before the slow-down
SLOWDOWN_FACTORS = (1.25, 1.6)
STRONG_BATCHING = (0.75, 0.95)  # g in the truth "batching"
BATCHING_UTILISATION = (0.4, 0.7)  # u in the truth "batching"
LARGEST_USEFUL_BATCH = 8  # requests in the batches that define the capacity there
TWO_SIZES = TwoSizes(1, 4, 0.25)


def family_cores(seed: int) -> int:
    """The cores of the family's machine of this seed, 6 to 16."""
    return paper_load.drawn_cores(_rng(seed, _CORES))


def family_machine(seed: int) -> Machine:
    """The family's machine of this seed, over 10 x 10 threads, 10 instances, batches of 1 to 32."""
    cores = family_cores(seed)
    rng = _rng(seed, _SHAPE)
    sigma, kappa, phi, eta, omega, mu, nu, g, roughness, utilisation = rng.uniform(
        [0.02, 0.0, 0.1, 0.4, 1.0, 0.1, 0.7, 0.1, 0.05, paper_load.UTILISATION[0]],
        [0.3, 0.015, 0.8, 0.9, 1.2, 1.5, 1.3, 0.5, 0.2, paper_load.UTILISATION[1]],
    )
    i, a, n, b = paper_load.grid()
    time_s = (sigma + (1 - sigma) / a + kappa * (a - 1)) * (1 - phi + phi / i)
    time_s *= np.maximum(1.0, n * (i * a) ** eta / cores) ** omega
    time_s *= 1 + mu * ((n - 1) / cores) ** nu
    time_s *= g + (1 - g) * b
    time_s *= np.exp(roughness * smooth_field(rng, np.log(np.stack([i, a, n, b], axis=-1))))
    return at_utilisation(Machine(*paper_load.AXES, time_s), utilisation)


def space_of(truth: str, machine: Machine) -> ConfigurationSpace:
    """The grid that suits a truth, without the values beyond the machine's table."""
    space = ConfigurationSpace.parse(BATCHING_SPACE if truth in WITH_BATCHES else PAPER_SPACE)
    knobs = []
    for knob in space.knobs:
        largest = machine.largest(knob.name) or math.inf
        knobs.append(Knob(knob.name, tuple(value for value in knob.values if value <= largest)))
    return ConfigurationSpace(tuple(knobs))


def scenarios(text: str, truth: str = "model", cores: int | None = None) -> list[Scenario]:
    """The scenarios of `FILE.npz[,FILE2.npz]` or `SOURCE:SEEDS` (`family:1000-1019`, `usl:0,3,5`).

    `cores` are those of the machines of files, which do not tell them. A generated machine has its own.
    ValueError with one sentence for a truth, a file or seeds that are not understood.
    """
    if truth not in TRUTHS:
        raise ValueError(f"unknown truth {truth!r}; known: {', '.join(TRUTHS)}")
    source, colon, seeds = text.partition(":")
    if colon and source in SOURCES:
        return [_generated(source, seed, truth) for seed in listed_seeds(text, seeds)]
    known = ", ".join(["FILE.npz[,FILE2.npz]", *(f"{name}:SEEDS" for name in SOURCES)])
    paths = [Path(part) for part in text.split(",") if part]
    if not paths:
        raise ValueError(f"no machine is given; expected {known}")
    if colon and source.isalpha() and not paths[0].suffix:  # a misspelt source, and no file
        raise ValueError(f"unknown machines {text!r}; expected {known}")
    made = [TRUTHS[truth](Machine.load(path), path.stem, k) for k, path in enumerate(paths)]
    return made if cores is None else [replace(scenario, cores=cores) for scenario in made]


def _generated(source: str, seed: int, truth: str) -> Scenario:
    machine, cores = SOURCES[source](seed)
    return replace(TRUTHS[truth](machine, f"{source}-{seed}", seed), cores=cores)


def _model(machine: Machine, name: str, seed: int) -> Scenario:
    return Scenario(machine, name)


def _processor_sharing(machine: Machine, name: str, seed: int) -> Scenario:
    return Scenario(machine, name, discipline="ps")


def _variation(machine: Machine, name: str, seed: int) -> Scenario:
    return Scenario(machine, name, service_variation=math.sqrt(math.log(1 + SCV)))


def _backlog(machine: Machine, name: str, seed: int) -> Scenario:
    return Scenario(machine, name, carry_backlog=True)


def _two_sizes(machine: Machine, name: str, seed: int) -> Scenario:
    return Scenario(machine, name, sizes=TWO_SIZES, size_of_table=TWO_SIZES.mean)


def _slowdown(machine: Machine, name: str, seed: int) -> Scenario:
    factor = float(_rng(seed, _SLOWDOWN).uniform(*SLOWDOWN_FACTORS))
    return Scenario(machine, name, slowdown=(SLOWDOWN_AT, factor))


def _batching(machine: Machine, name: str, seed: int) -> Scenario:
    """Batches gain more, and the machine is so much slower that it cannot do without them."""
    if machine.largest("max_batch_size") == 1:
        raise ValueError(f"machine {name}: its table holds batches of 1 only; measure larger ones")
    gain, utilisation = _rng(seed, _BATCHING).uniform(
        [STRONG_BATCHING[0], BATCHING_UTILISATION[0]],
        [STRONG_BATCHING[1], BATCHING_UTILISATION[1]],
    )
    b = machine.batch_size
    ratio = machine.service_time_s / machine.service_time_s[..., :1]
    growth = np.exp(np.log(ratio).mean(axis=(0, 1, 2)))  # (B,) the machine's own G(b)
    times_s = machine.service_time_s / growth * (gain + (1 - gain) * b) / (gain + (1 - gain) * b[0])
    return Scenario(
        at_utilisation(replace(machine, service_time_s=times_s), utilisation, LARGEST_USEFUL_BATCH), name
    )


TRUTHS: dict[str, Callable[[Machine, str, int], Scenario]] = {
    "model": _model,
    "processor-sharing": _processor_sharing,
    "variation": _variation,
    "backlog": _backlog,
    "batches": _model,
    "batching": _batching,
    "two-sizes": _two_sizes,
    "slowdown": _slowdown,
}
"""What is true beyond the table of service times, as functions (machine, name, seed) -> scenario."""

WITH_BATCHES = ("batches", "batching")
"""Truths under which the knobs of batching are tuned."""

SOURCES: dict[str, Callable[[int], tuple[Machine, int]]] = {
    "family": lambda seed: (family_machine(seed), family_cores(seed)),
    "usl": usl_machine,
    "roofline": roofline_machine,
    "profiled": profiled_machine,
}
"""Where machines come from that are no files, as functions seed -> machine, cores."""


def _rng(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def listed_seeds(text: str, listed: str) -> list[int]:
    """Of `0-19` or `0,3,5`; ValueError that shows the whole text that they stand in."""
    seeds: list[int] = []
    try:
        for part in listed.split(","):
            first, dash, last = part.partition("-")
            span = range(int(first), int(last if dash else first) + 1)
            if not 1 <= len(span) <= 10_000:
                raise ValueError
            seeds += span
    except ValueError:
        raise ValueError(
            f"cannot read the seeds of {text!r}; expected numbers and ranges, "
            "e.g. family:1000-1019 or family:0,3,5"
        ) from None
    return seeds
