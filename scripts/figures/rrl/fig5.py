"""RRL, Fig. 5: latency over two batching knobs at two loads, on a simulated stand-in of a GPU.

| the paper | here |
|---|---|
| Inception-V3 on a GTX 1080 Ti | an invented machine on which batches gain much (`fig13.gpu_stand_in`) |
| parallel batch threads | `instances`, 1 to 8 |
| batch timeout | `max_queue_delay_us`, 0 to 200 ms; in the fine grid steps of 2 ms |
| batch size 50 | `max_batch_size` 50 |
| 61 requests/s | 61 and 76 requests/s, Poisson, expected latency by long simulation |

No GPU was measured. A machine is a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import FIRST_FOR_JUDGING
from envs.scenarios.scenario import Scenario
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_mean
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.rrl.fig13 import RATE_PER_S, REQUESTS_PER_INTERVAL, gpu_stand_in
from scripts.figures.served import heat_map
from scripts.figures.served.cross_validation import SURELY
from scripts.figures.served.landscape import LatencyLandscape, pairs, rank_correlation

NAME = "rrl-fig5"
BATCH_SIZE = 50
COARSE = "instances=1:8,max_queue_delay_us=0,5000,10000,20000,50000,100000,200000"
FINE = "instances=1:5,max_queue_delay_us=0,2000,4000,6000,8000"
RATES_PER_S = (RATE_PER_S, 76.0)


@dataclass(frozen=True)
class Figure5Setting:
    coarse: str = COARSE
    fine: str = FINE
    rates_per_s: tuple[float, float] = RATES_PER_S
    requests_per_interval: int = REQUESTS_PER_INTERVAL


@dataclass(frozen=True)
class OfMachine:
    """Both grids of one machine, for each load."""

    coarse: list[LatencyLandscape]
    fine: list[LatencyLandscape]


def run(out: Path, seeds: int, setting: Figure5Setting | None = None) -> FigureResult:
    """Writes rrl-fig5.png and its CSV."""
    setting = setting or Figure5Setting()
    machines = [_of_machine(FIRST_FOR_JUDGING + k, setting) for k in range(seeds)]
    heat_map.draw(
        out / f"{NAME}.png",
        "RRL, Fig. 5: expected latency over two batching knobs at two loads",
        f"a simulated stand-in of a GPU (machine {FIRST_FOR_JUDGING}), ms; the lighter, the lower",
        [list(pair) for pair in zip(machines[0].coarse, machines[0].fine, strict=True)],
    )
    write_csv(
        out / f"{NAME}.csv",
        [row for k, of in enumerate(machines) for each in (*of.coarse, *of.fine) for row in _table(k, each)],
    )
    return FigureResult(
        title="RRL, Fig. 5: latency over two batching knobs at two loads, stand-in of a GPU",
        setting="Simulated stand-ins of a GPU, with strong batching gains: expected latency of intervals of "
        f"{setting.requests_per_interval} requests with batches of up to {BATCH_SIZE}. A machine for each "
        "seed:",
        seeds=seeds,
        claims=tuple(_claims(machines)),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv",),
    )


def _of_machine(seed: int, setting: Figure5Setting) -> OfMachine:
    scenario = Scenario(gpu_stand_in(seed), f"gpu-stand-in-{seed}")
    return OfMachine(
        [_landscape(scenario, "coarse", setting.coarse, rate, setting) for rate in setting.rates_per_s],
        [_landscape(scenario, "fine", setting.fine, rate, setting) for rate in setting.rates_per_s],
    )


def _landscape(
    scenario: Scenario, how: str, knobs: str, rate_per_s: float, setting: Figure5Setting
) -> LatencyLandscape:
    space = ConfigurationSpace.parse(f"{knobs},max_batch_size={BATCH_SIZE}")
    costs = ExpectedCosts(scenario, space, MeanLatency(), setting.requests_per_interval)
    latency_ms = costs.mean_latency_ms(rate_per_s)
    two = [space.names.index(name) for name in ("max_queue_delay_us", "instances")]
    return LatencyLandscape(
        f"GPU stand-in, {rate_per_s:g}/s, {how}",
        ("max_queue_delay_us", "instances"),
        space.values[:, two],
        latency_ms[:, None],
    )


def _claims(machines: Sequence[OfMachine]) -> list[Claim]:
    """The rules are those of Fig. 4, over machines."""
    spread = bootstrap_mean(_each(machines, lambda of: _ratio(of.coarse[0])))
    smooth = bootstrap_mean(_each(machines, lambda of: _smoothness(of.coarse[0], of.fine[0])))
    uneven = bootstrap_mean(_each(machines, lambda of: _unevenness(*of.coarse)))
    ranks = bootstrap_mean(
        _each(machines, lambda of: rank_correlation(of.coarse[0].mean_ms, of.coarse[1].mean_ms))
    )
    return [
        Claim(
            "dearest configuration, over the cheapest",
            "quite versatile globally",
            spread.text(".1f"),
            _at_least(spread, heat_map.VERSATILE),
        ),
        Claim(
            "typical ratio of neighbours in the fine grid, as a share of that of any two in the coarse one "
            "(logarithms)",
            "smooth locally",
            smooth.text(".2f"),
            REPRODUCES if smooth.high <= heat_map.SMOOTH_SHARE else PARTLY if smooth.high < 1 else FAILS,
        ),
        Claim(
            "how unevenly configurations slow down at the higher load (95th over 5th percentile)",
            "quite different",
            f"{uneven.text('.2f')}; rank correlation of the two loads {ranks.text('.2f')}",
            _at_least(uneven, heat_map.DIFFERENT),
        ),
    ]


def _each(machines: Sequence[OfMachine], figure: Callable[[OfMachine], float]) -> np.ndarray:
    """(machines,) a figure of each."""
    return np.array([figure(of) for of in machines])


def _at_least(of: BootstrapInterval, limit: float) -> str:
    return REPRODUCES if of.low >= limit else PARTLY if of.low > SURELY else FAILS


def _ratio(landscape: LatencyLandscape) -> float:
    return float(landscape.mean_ms.max() / landscape.mean_ms.min())


def _smoothness(coarse: LatencyLandscape, fine: LatencyLandscape) -> float:
    near = pairs(heat_map.by_place(fine))
    neighbours = np.log(near.difference[near.distance <= heat_map.NEIGHBOURS])
    return float(np.median(neighbours) / np.median(np.log(pairs(coarse).difference)))


def _unevenness(one: LatencyLandscape, other: LatencyLandscape) -> float:
    return float(heat_map.unevenness(np.log(other.mean_ms / one.mean_ms)))


def _table(machine: int, landscape: LatencyLandscape) -> list[dict[str, object]]:
    return [
        {"machine": FIRST_FOR_JUDGING + machine, "grid": landscape.label, "max_queue_delay_us": int(x)}
        | {"instances": int(y), "expected_ms": float(ms)}
        for (x, y), ms in zip(landscape.values, landscape.mean_ms, strict=True)
    ]
