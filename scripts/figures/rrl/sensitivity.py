"""How RRL's latency depends on what its paper leaves open: δ, γ, β, and how load levels are cut.

| symbol | tried | meaning |
|---|---|---|
| δ | 1, **2**, 3 | the region's radius, in grid steps |
| γ | **0**, 0.5, 0.9 | discount factor |
| β | 5, **20**, 60 | inverse temperature, for costs relative to the lowest one seen |
| ratio | 1.5, **2**, 3, one level | of neighbouring load levels, cut off the mean load |
| | 1.5, cut at the mean | levels as the agent `rrl-paper` has them: a boundary lies at 13.95/s |

The bold ones are those of Fig. 12 (`rrl-levels`). One is changed at a time. The runs are those of Fig. 12
under WiKi with requests alike, and `CAPES` there is what they are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from envs.scenarios.families import RATE_PER_S
from rrl.load_levels import LoadLevels
from rrl.region.q_learning import RRLSettings
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval
from scripts.figures.result import NO_CLAIM, Claim, FigureResult, write_csv
from scripts.figures.rrl import fig12, rules
from scripts.figures.rrl.contenders import Contender, contenders, levels, papers_settings
from scripts.figures.rrl.long_runs import WIKI, LongRunsSetting, PanelRuns, run_panel

NAME = "rrl-sensitivity"
BASE, PEER = "rrl-levels", "capes"


class Varied(NamedTuple):
    """One value of one setting."""

    symbol: str
    value: str
    name: str  # of the contender


class Effect(NamedTuple):
    """The change of the mean latency against CAPES, in percent, and when the runs settled."""

    whole: BootstrapInterval
    second_half: BootstrapInterval
    settled: np.ndarray  # (runs,)


def varied() -> tuple[list[Varied], dict[str, Contender]]:
    """Every value of every setting, and the agents for them."""
    of_fig12 = contenders(RATE_PER_S)
    base = papers_settings(levels(RATE_PER_S))
    values: list[tuple[str, str, RRLSettings | None]] = [
        ("δ", "1", replace(base, radius=1.0)),
        ("δ", "2", None),
        ("δ", "3", replace(base, radius=3.0)),
        ("γ", "0", None),
        ("γ", "0.5", replace(base, discount=0.5)),
        ("γ", "0.9", replace(base, discount=0.9)),
        ("β", "5", replace(base, inverse_temperature=5.0)),
        ("β", "20", None),
        ("β", "60", replace(base, inverse_temperature=60.0)),
        ("ratio", "1.5, cut at the mean", papers_settings(LoadLevels())),
        ("ratio", "1.5", papers_settings(levels(RATE_PER_S, 1.5))),
        ("ratio", "2", None),
        ("ratio", "3", papers_settings(levels(RATE_PER_S, 3.0))),
    ]
    agents = {name: of_fig12[name] for name in (BASE, "rrl", PEER)}
    found = []
    for symbol, value, settings in values:
        name = BASE
        if settings is not None:
            name = f"rrl-varied-{len(agents)}"
            agents[name] = replace(of_fig12[BASE], label=f"{symbol} = {value}", settings=settings)
        found.append(Varied(symbol, value, name))
    return [*found, Varied("ratio", "one level", "rrl")], agents


def run(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-sensitivity.png and its CSV. It has a third of the other figures' runs, at least one."""
    setting = setting or LongRunsSetting()
    count = max(1, seeds // 3)
    cases, agents = varied()
    panel = fig12.cpu_panel(WIKI, fig12.INCEPTION, count, setting)
    runs = run_panel(panel, agents, setting)
    effects = {case: _effect(runs, case.name) for case in cases}
    _draw(out / f"{NAME}.png", effects, count)
    write_csv(
        out / f"{NAME}.csv",
        [
            {"setting": case.symbol, "value": case.value}
            | {"percent_whole": effect.whole.estimate, "low": effect.whole.low, "high": effect.whole.high}
            | {"percent_second_half": effect.second_half.estimate}
            | {"median_decisions_until_settled": float(np.sort(effect.settled)[count // 2])}
            for case, effect in effects.items()
        ],
    )
    return FigureResult(
        title="RRL: sensitivity to what the paper leaves open",
        setting="Simulated machines of the family, one for each run, WiKi, requests alike, "
        f"{setting.decisions} decisions. Mean latency of Algorithm 1 with load levels against CAPES.",
        seeds=count,
        claims=tuple(_claim(case, effect, setting.decisions) for case, effect in effects.items()),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv",),
    )


def _effect(runs: PanelRuns, name: str) -> Effect:
    ours_ms, theirs_ms = runs.latency_ms(name), runs.latency_ms(PEER)
    return Effect(*rules.percent_changes(ours_ms, theirs_ms), rules.settled_after(runs.ratio(name)))


def _claim(case: Varied, effect: Effect, decisions: int) -> Claim:
    whole = rules.percent_text(effect.whole, len(effect.settled))
    text = f"{whole}; second half {effect.second_half.estimate:+.0f} %"
    text += f"; settles after {rules.after_text(effect.settled, decisions)}"
    what = f"{case.symbol}: {case.value}" if case.symbol == "ratio" else f"{case.symbol} = {case.value}"
    return Claim(f"mean latency against CAPES, {what}", "–", text, NO_CLAIM)


def _draw(path: Path, effects: Mapping[Varied, Effect], runs: int) -> None:
    symbols = list(dict.fromkeys(case.symbol for case in effects))
    figure, axes = drawing.new_figure(
        1,
        len(symbols),
        width=3.4,
        height=3.4,
        title="RRL: mean latency against CAPES, by what the paper leaves open",
        subtitle=f"{runs} runs; filled: the whole run with its 95 % bootstrap interval, hollow: second half",
        sharey=True,
    )
    for ax, symbol in zip(axes[0], symbols, strict=True):
        own = {case: effect for case, effect in effects.items() if case.symbol == symbol}
        _draw_one(ax, own)
        drawing.names(ax, symbol, "change of the mean (%)" if symbol == symbols[0] else "")
    drawing.save(figure, path)


def _draw_one(ax: Axes, effects: Mapping[Varied, Effect]) -> None:
    x = np.arange(len(effects))
    whole = np.array([effect.whole for effect in effects.values()])
    estimate, low, high = whole.T
    ax.errorbar(
        x,
        estimate,
        np.maximum(0, [estimate - low, high - estimate]),
        fmt="o",
        color=figure_style.GREEN,
        capsize=3,
        linewidth=1.5,
    )
    later = [effect.second_half.estimate for effect in effects.values()]
    ax.plot(x, later, "o", markerfacecolor="none", color=figure_style.GREEN)
    ax.axhline(0.0, color=figure_style.INK, linewidth=0.8)
    labels = [case.value.replace(", ", ",\n").replace("one level", "one\nlevel") for case in effects]
    ax.set_xticks(x, labels, fontsize=8)
    ax.set_xlim(-0.5, len(effects) - 0.5)
