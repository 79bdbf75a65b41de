"""RRL, Fig. 3: latency by parallelism, on the real server.

| the paper | here |
|---|---|
| Inception-V3 in TensorFlow Serving on CPU | Inception-V3 in `rrl-serve` (`served.models`) |
| performance | mean latency at 14 requests/s, Poisson |
| sequential execution | one instance, one inter-op thread, one intra-op thread |
| appropriate and excessive parallelism | each knob alone at 1 to 8, and all three together |

Rows are kept as those of Fig. 4 are, in the same file. What is best is chosen by all rounds but one, and
judged by that one (`served.cross_validation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.result import NO_CLAIM, Claim, FigureResult, write_csv
from scripts.figures.rrl.fig4 import ROWS
from scripts.figures.served.cross_validation import SURELY, cheapest, judged, ratio, ratio_claim
from scripts.figures.served.landscape import typical_ratio_of_rounds
from scripts.figures.served.measuring import in_rounds, measured
from scripts.figures.served.models import INCEPTION, RATES_PER_S, ModelUnderLoad
from serving_adapter import resources

NAME = "rrl-fig3"
KNOBS = ("instances", "inter_op_threads", "intra_op_threads")
TOGETHER = "all three"
VALUES = (1, 2, 3, 4, 6, 8)
PAPER_FACTOR = 10.0  # "up to 10 times", on 10 cores


@dataclass(frozen=True)
class Figure3Setting:
    model: ModelUnderLoad = INCEPTION
    values: tuple[int, ...] = VALUES
    rate_per_s: float = RATES_PER_S[0]
    requests: int = 60

    @property
    def sweeps(self) -> dict[str, list[dict[str, int]]]:
        """What is drawn as a line: each knob alone, and all together."""
        one = dict.fromkeys(KNOBS, 1) | {"max_batch_size": 1}
        alone = {knob: [one | {knob: value} for value in self.values] for knob in KNOBS}
        return alone | {TOGETHER: [one | dict.fromkeys(KNOBS, value) for value in self.values]}


def run(out: Path, seeds: int, setting: Figure3Setting | None = None) -> FigureResult:
    """Writes rrl-fig3.png and its CSV. `seeds` is the number of rounds."""
    setting = setting or Figure3Setting()
    latency_ms = _latencies(out, seeds, setting)
    _draw(out / f"{NAME}.png", latency_ms, setting, seeds)
    write_csv(
        out / f"{NAME}.csv",
        [
            {"swept": name, "value": value, "round": k, "mean_ms": float(each[i, k])}
            for name, each in latency_ms.items()
            for i, value in enumerate(setting.values)
            for k in range(seeds)
        ],
    )
    return FigureResult(
        title="RRL, Fig. 3: latency by parallelism, on the real server",
        setting=f"{setting.model.label} in rrl-serve on {resources.cores()} cores, which it shares with the "
        f"load: {setting.requests} requests at {setting.rate_per_s:g}/s each time. One round for each seed:",
        seeds=seeds,
        claims=tuple(_claims(latency_ms)),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv", ROWS),
    )


def _latencies(out: Path, rounds: int, setting: Figure3Setting) -> dict[str, np.ndarray]:
    """By sweep, (values, rounds) mean latencies."""
    unique = {tuple(each.items()): each for sweep in setting.sweeps.values() for each in sweep}
    asked = in_rounds(setting.model, list(unique.values()), (setting.rate_per_s,), setting.requests, rounds)
    rows = measured(out / ROWS, asked)
    found = {
        (tuple(one.configuration.items()), one.round): float(row["latency_ms"])
        for one, row in zip(asked, rows, strict=True)
    }
    return {
        name: np.array([[found[tuple(each.items()), k] for k in range(rounds)] for each in sweep])
        for name, sweep in setting.sweeps.items()
    }


def _claims(latency_ms: dict[str, np.ndarray]) -> list[Claim]:
    every = np.unique(np.concatenate(list(latency_ms.values())), axis=0)  # sequential execution once
    best_ms = judged(every, cheapest(every))
    claims = [
        ratio_claim(
            "sequential execution, over the best configuration measured",
            "up to 10, on 10 cores",
            ratio(latency_ms[KNOBS[0]][0], best_ms),
            limit=0.75 * PAPER_FACTOR,
            least=1.0,
        )
    ]
    for name, each in latency_ms.items():
        claims.append(
            ratio_claim(
                f"excessive parallelism, {name.replace('_', ' ')}: the most, over the best of it",
                "decreases performance",
                ratio(each[-1], judged(each, cheapest(each))),
                limit=SURELY,
                least=1.0,
            )
        )
    noise = typical_ratio_of_rounds(every)
    typical = "one round" if np.isnan(noise) else f"{noise:.3f}"
    return [*claims, Claim("typical ratio of two rounds of one configuration", "–", typical, NO_CLAIM)]


def _draw(path: Path, latency_ms: dict[str, np.ndarray], setting: Figure3Setting, rounds: int) -> None:
    figure, axes = drawing.new_figure(
        width=7.0,
        height=3.8,
        title="RRL, Fig. 3: latency by parallelism, on the real server",
        subtitle=f"{setting.model.label} at {setting.rate_per_s:g}/s; mean and range of {rounds} rounds",
    )
    ax = axes[0, 0]
    figure_style.log_axis(ax, "y")
    colours: Sequence[str] = figure_style.COLOURS
    for (name, each), colour in zip(latency_ms.items(), colours, strict=False):
        mean = np.exp(np.log(each).mean(axis=1))
        x, low, high = np.array(setting.values), each.min(axis=1), each.max(axis=1)
        drawing.band(ax, x, mean, low, high, colour, name.replace("_", " "))
    ax.set_xticks(list(setting.values))
    drawing.names(ax, "value of the knob", "mean latency (ms)")
    drawing.label_lines_at_end(ax)
    drawing.save(figure, path)
