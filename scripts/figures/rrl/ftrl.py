"""RRL, section 5.1: FTRL against Adam, AdaGrad and SGD for the latency estimator.

The paper trains with FTRL "instead of the Adam method or other popular optimizers". It says that FTRL is
insensitive to model parameters and does well with little training data. The estimator of this project starts
FTRL from the network's weights and leaves regularisation out, which makes it AdaGrad (`rrl.region.ftrl`). So
FTRL is studied in settings in which it is FTRL, where neither n_0 nor z_0 need be those of AdaGrad.

| optimiser | z_0 | n_0 | β | λ1, λ2 | state |
|---|---|---|---|---|---|
| `ftrl-tensorflow` | 0 | 0.1 | 0 | 0, 0 | goes on |
| `ftrl-proximal` (McMahan et al.) | 0 | 0 | 1 | 1e-4, 1e-3 | goes on |
| `ftrl-from-weights` | from w_0 | 0 | 1 | 1e-4, 1e-3 | goes on |
| `estimator` (this project's default) | from w_0 | 0.1 | 0 | 0, 0 | anew each round |
| `adam`, `adagrad`, `sgd` | | | | | goes on |

Every optimiser has the same learning rates to choose from. The one with the lowest error on machines
`TUNED_ON` is the one that is judged on machines that were not looked at. What is judged is in
`optimiser_stream`. Each run is a row of `rrl-ftrl.jsonl` in the output folder, and the same command goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from envs.scenarios.families import FIRST_FOR_JUDGING
from envs.simulated import PAPER_SPACE
from rrl.region.ftrl import FTRL
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_change, bootstrap_mean
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.rrl.optimiser_stream import (
    LatencyStream,
    MakeOptimizer,
    StudiedEstimator,
    errors,
    without_network,
)
from scripts.kept_rows import KeptRows, Row

NAME = "rrl-ftrl"
ROWS = f"{NAME}.jsonl"
TUNED_ON = range(900, 904)  # seeds of the family
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FEW_SAMPLES = 40  # decisions: "limited training data"
AFTER_CHANGE = 15  # decisions
NEAR_BEST = 1.25  # learning rates within so many times an optimiser's lowest error are as good
NO_NETWORK = "no network"


class Studied(NamedTuple):
    """An optimiser, and whether its state goes on from one round of training to the next."""

    make: Callable[..., torch.optim.Optimizer]
    goes_on: bool = True

    def at(self, rate: float) -> MakeOptimizer:
        return partial(self.make, lr=rate)


_REGULARISED: Mapping[str, Any] = {"initial_accumulator_value": 0.0, "beta": 1.0, "l1": 1e-4, "l2": 1e-3}
STUDIED: Mapping[str, Studied] = {
    "ftrl-tensorflow": Studied(FTRL),
    "ftrl-proximal": Studied(partial(FTRL, **_REGULARISED)),
    "ftrl-from-weights": Studied(partial(FTRL, start_from_weights=True, **_REGULARISED)),
    "estimator": Studied(partial(FTRL, start_from_weights=True), goes_on=False),
    "adam": Studied(torch.optim.Adam),
    "adagrad": Studied(torch.optim.Adagrad),
    "sgd": Studied(torch.optim.SGD),
}
OF_FTRL = ("ftrl-tensorflow", "ftrl-proximal", "ftrl-from-weights")
POPULAR = ("adam", "adagrad", "sgd")


@dataclass(frozen=True)
class FTRLSetting:
    decisions: int = 120
    knobs: str = PAPER_SPACE
    rates: tuple[float, ...] = RATES
    tuned_on: Sequence[int] = TUNED_ON
    optimisers: tuple[str, ...] = tuple(STUDIED)


class Figures(NamedTuple):
    """Mean errors of a run: over all of it, over its beginning, and after its changes."""

    whole: float
    early: float
    after_change: float


def run(out: Path, seeds: int, setting: FTRLSetting | None = None) -> FigureResult:
    """Writes rrl-ftrl.png and its CSV."""
    setting = setting or FTRLSetting()
    judged = [FIRST_FOR_JUDGING + k for k in range(seeds)]
    runs = _all_runs(out / ROWS, [*setting.tuned_on, *judged], setting)
    chosen = {
        name: min(setting.rates, key=lambda rate: _mean(runs, name, rate, setting.tuned_on))
        for name in setting.optimisers
    }
    found = {name: _figures(runs, name, rate, judged) for name, rate in chosen.items()}
    found[NO_NETWORK] = _figures(runs, NO_NETWORK, 0.0, judged)
    curves = {
        name: np.array([_mean(runs, name, rate, judged) for rate in setting.rates])
        for name in setting.optimisers
    }
    _draw(out / f"{NAME}.png", setting, curves, found, seeds)
    write_csv(
        out / f"{NAME}.csv",
        [
            {"optimiser": name, "learning_rate": rate, "judged_error": float(error)}
            | {"is_chosen": int(rate == chosen[name])}
            for name, each in curves.items()
            for rate, error in zip(setting.rates, each, strict=True)
        ],
    )
    return FigureResult(
        title="RRL, section 5.1: FTRL for the latency estimator",
        setting=f"Streams of {setting.decisions} decisions on simulated machines, which change three times. "
        "Error: mean deviation of the logarithm of a latency in a region, relative to the one observed. "
        f"Learning rates chosen on machines {min(setting.tuned_on)} to {max(setting.tuned_on)} of the "
        f"family, judged from {judged[0]} on.",
        seeds=seeds,
        claims=tuple(_claims(setting, chosen, found, curves)),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv", ROWS),
    )


Runs = Mapping[tuple[int, str, float], Row]
"""By machine, optimiser and learning rate."""


def _all_runs(path: Path, machines: Sequence[int], setting: FTRLSetting) -> Runs:
    """All runs; what the file lacks is run and added to it."""
    kept = KeptRows(path, ("decisions", "knobs", "machine", "optimiser", "learning_rate"))
    plain = (NO_NETWORK, 0.0)
    wanted = [plain, *((name, rate) for name in setting.optimisers for rate in setting.rates)]
    found: dict[tuple[int, str, float], Row] = {}
    for machine in machines:
        common = {"decisions": setting.decisions, "knobs": setting.knobs, "machine": machine}
        keys = {each: common | {"optimiser": each[0], "learning_rate": each[1]} for each in wanted}
        missing = {each: key for each, key in keys.items() if key not in kept}
        if missing:
            stream = LatencyStream.of_machine(machine, setting.decisions, setting.knobs)
            for (name, rate), key in missing.items():
                kept.add(key | _summary(_errors(stream, name, rate))._asdict())
            print(f"machine {machine}: {len(missing)} runs", flush=True)
        found |= {(machine, *each): kept[key] for each, key in keys.items()}
    return found


def _errors(stream: LatencyStream, optimiser: str, rate: float) -> np.ndarray:
    if optimiser == NO_NETWORK:
        return without_network(stream)
    studied = STUDIED[optimiser]
    seed = int(stream.numbers[0])
    estimator = StudiedEstimator(len(stream.space.knobs), seed, studied.at(rate), studied.goes_on)
    return errors(stream, estimator)


def _summary(each: np.ndarray) -> Figures:
    decisions = len(each)
    changes = [decisions * k // 4 for k in (1, 2, 3)]
    after = np.concatenate([each[change : change + AFTER_CHANGE] for change in changes])
    return Figures(*(float(np.nanmean(part)) for part in (each, each[:FEW_SAMPLES], after)))


class ErrorsOfMachines(NamedTuple):
    """The same of several machines, each (machines,)."""

    whole: np.ndarray
    early: np.ndarray
    after_change: np.ndarray


def _figures(runs: Runs, name: str, rate: float, machines: Sequence[int]) -> ErrorsOfMachines:
    rows = [runs[machine, name, rate] for machine in machines]
    return ErrorsOfMachines(*(np.array([row[field] for row in rows]) for field in ErrorsOfMachines._fields))


def _mean(runs: Runs, name: str, rate: float, machines: Sequence[int]) -> float:
    return float(np.mean(_figures(runs, name, rate, machines).whole))


def decades_near_best(rates: Sequence[float], curve: np.ndarray) -> float:
    """Over how many decades of learning rate, around the best, the error stays near the lowest."""
    near = curve <= NEAR_BEST * curve.min()
    first = last = int(np.argmin(curve))
    while first > 0 and near[first - 1]:
        first -= 1
    while last < len(rates) - 1 and near[last + 1]:
        last += 1
    return float(np.log10(rates[last] / rates[first]))


def _claims(
    setting: FTRLSetting,
    chosen: Mapping[str, float],
    found: Mapping[str, ErrorsOfMachines],
    curves: Mapping[str, np.ndarray],
) -> list[Claim]:
    claims = []
    ours = [name for name in OF_FTRL if name in found]
    others = [name for name in POPULAR if name in found]
    for name in ours:
        for other in others:
            change = _percent(found[name].whole, found[other].whole)
            what = f"error of regions: {name} against {other}"
            claims.append(Claim(what, "FTRL performs very well", change.text("+.0f", " %"), _lower(change)))
    widths = {name: decades_near_best(setting.rates, curve) for name, curve in curves.items()}
    for name in ours:
        widest = max((widths[other] for other in others), default=0.0)
        is_as_wide = np.isclose(widths[name], widest)
        verdict = PARTLY if is_as_wide else REPRODUCES if widths[name] > widest else FAILS
        if not _percent(found[name].whole, found[NO_NETWORK].whole).high < 0:
            verdict = FAILS  # what learns nothing is as bad with any learning rate
        text = ", ".join(f"{other} {widths[other]:.1f}" for other in others)
        what = f"decades of learning rate with nearly the lowest error: {name}"
        claims.append(Claim(what, "insensitive", f"{widths[name]:.1f} ({text})", verdict))
    for name in ours:
        change = _percent(found[name].early, found[NO_NETWORK].early)
        what = f"error in the first {FEW_SAMPLES} decisions: {name} against taking a region for alike"
        paper = "performs well with limited training data"
        claims.append(Claim(what, paper, change.text("+.0f", " %"), _lower(change)))
    claims += [
        Claim(
            f"error: {name}" + (f", learning rate {chosen[name]:g}" if name in chosen else ""),
            "–",
            f"{bootstrap_mean(each.whole).text('.3f')}; first {FEW_SAMPLES} decisions "
            f"{np.mean(each.early):.3f}, after changes {np.mean(each.after_change):.3f}",
            NO_CLAIM,
        )
        for name, each in found.items()
    ]
    return claims


def _percent(ours: np.ndarray, theirs: np.ndarray) -> BootstrapInterval:
    change = bootstrap_change(ours, theirs)
    return BootstrapInterval(*(100 * value for value in change))


def _lower(change: BootstrapInterval) -> str:
    """Yes: surely lower. Partly: neither surely lower nor surely higher."""
    return REPRODUCES if change.high < 0 else PARTLY if change.low <= 0 else FAILS


def _draw(
    path: Path,
    setting: FTRLSetting,
    curves: Mapping[str, np.ndarray],
    found: Mapping[str, ErrorsOfMachines],
    seeds: int,
) -> None:
    figure, axes = drawing.new_figure(
        1,
        2,
        width=5.6,
        height=3.6,
        title="RRL, section 5.1: FTRL and other optimisers for the latency estimator",
        subtitle=f"error of the estimates of a region; {seeds} simulated machines that nothing was chosen on",
    )
    left, right = axes[0]
    colours = dict(zip(STUDIED, figure_style.COLOURS, strict=True))
    figure_style.log_axis(left, "x", subs=(1.0,))
    for name, each in curves.items():
        style = "-" if name in OF_FTRL else "--"
        left.plot(setting.rates, each, style, color=colours[name], linewidth=1.6)
    left.axhline(float(np.mean(found[NO_NETWORK].whole)), color=figure_style.GREY, linewidth=1.0)
    drawing.names(left, "learning rate", "mean error", "by learning rate, in the colours beside it")
    names = list(found)
    for k, name in enumerate(names):
        interval = bootstrap_mean(found[name].whole)
        right.barh(k, interval.estimate, color=colours.get(name, figure_style.GREY), height=0.6)
        right.plot([interval.low, interval.high], [k, k], color=figure_style.BLACK, linewidth=1.2)
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    drawing.names(right, "mean error", "", "at the learning rate chosen beforehand")
    drawing.save(figure, path)
