"""RRL, Fig. 4: latency over two knobs at two loads, the whole grid and a small region, on the real server.

| the paper | here |
|---|---|
| TensorFlow Serving, 10 cores | `rrl-serve`, the cores of this machine |
| Inception-V3, intra-op parallelism 10 | Inception-V3 (`served.models`), as many intra-op threads as cores |
| – | DeepSpeech 2 over intra-op threads and instances |
| 14 requests/s | 14 and 20 requests/s, Poisson |
| left: coarse-grained, right: zoomed in | all of `COARSE` squared; all of `FINE` squared |

Every measurement is a row of `rrl-served.jsonl` in the output folder (`served.measuring`). The same command
goes on with what is there. So the figure can be measured in parts.

Dearest and cheapest are chosen by all rounds but one, and judged by that one (`served.cross_validation`). How
unevenly configurations slow down is compared with permutations (`served.heat_map`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from scripts.figures.result import Claim, FigureResult, write_csv
from scripts.figures.served import heat_map
from scripts.figures.served.landscape import LatencyLandscape, of_rows
from scripts.figures.served.measuring import Asked, in_rounds, measured, on_this_machine, with_fixed
from scripts.figures.served.models import DEEPSPEECH, INCEPTION, RATES_PER_S, ModelUnderLoad
from serving_adapter import resources

NAME = "rrl-fig4"
ROWS = "rrl-served.jsonl"
COARSE, FINE = (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Figure4Setting:
    models: tuple[ModelUnderLoad, ...] = (INCEPTION, DEEPSPEECH)
    rates_per_s: tuple[float, float] = RATES_PER_S
    coarse: tuple[int, ...] = COARSE
    fine: tuple[int, ...] = FINE
    requests: int = 60

    @property
    def axes(self) -> dict[str, tuple[int, ...]]:
        return {"coarse": self.coarse, "fine": self.fine}

    @property
    def places(self) -> list[tuple[int, int]]:
        """The values of both knobs, of the coarse grid and of the fine one."""
        return sorted({place for axis in self.axes.values() for place in product(axis, axis)})


def run(out: Path, seeds: int, setting: Figure4Setting | None = None) -> FigureResult:
    """Writes rrl-fig4.png and its CSV. `seeds` is the number of rounds."""
    setting = setting or Figure4Setting()
    landscapes = served_landscapes(out, seeds, setting)
    heat_map.draw(
        out / f"{NAME}.png",
        "RRL, Fig. 4: latency over two knobs at two loads, on the real server",
        f"mean of {setting.requests} requests, ms, {seeds} rounds; the lighter, the lower; colours by panel",
        [
            [replace(each.on(axis), label=f"{each.label}, {how}") for how, axis in setting.axes.items()]
            for each in landscapes
        ],
    )
    write_csv(out / f"{NAME}.csv", [row for each in landscapes for row in _table(each)])
    claims: list[Claim] = []
    for low, high in zip(landscapes[::2], landscapes[1::2], strict=True):
        for each in (low, high):
            claims += heat_map.shape_claims(each.on(setting.coarse), each.on(setting.fine))
        claims += heat_map.load_claims(low.on(setting.coarse), high.on(setting.coarse))
    return FigureResult(
        title="RRL, Fig. 4: latency over two knobs at two loads, on the real server",
        setting=f"rrl-serve on {resources.cores()} cores, which it shares with the load. "
        f"{len(setting.places)} configurations of each model, {setting.requests} requests of a Poisson "
        "process each time. One round for each seed:",
        seeds=seeds,
        claims=tuple(claims),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv", ROWS),
    )


def served_landscapes(out: Path, rounds: int, setting: Figure4Setting) -> list[LatencyLandscape]:
    """The measured landscapes, model by model and load by load; what is missing is measured."""
    found = []
    for model in setting.models:
        model = on_this_machine(model, resources.cores())
        asked = _asked(model, setting, rounds)
        rows = measured(out / ROWS, asked)
        for rate_per_s in setting.rates_per_s:
            chosen = [k for k, one in enumerate(asked) if one.rate_per_s == rate_per_s]
            chosen.sort(key=lambda k: (asked[k].round, list(asked[k].configuration.values())))
            label = f"{model.label}, {rate_per_s:g}/s"
            found.append(of_rows(label, model.knobs, [asked[k] for k in chosen], [rows[k] for k in chosen]))
    return found


def _asked(model: ModelUnderLoad, setting: Figure4Setting, rounds: int) -> list[Asked]:
    configurations = [
        with_fixed(model, **dict(zip(model.knobs, place, strict=True))) for place in setting.places
    ]
    return in_rounds(model, configurations, setting.rates_per_s, setting.requests, rounds)


def _table(landscape: LatencyLandscape) -> list[dict[str, object]]:
    return [
        {"load": landscape.label, "x_knob": landscape.knobs[0], "x": int(x), "y_knob": landscape.knobs[1]}
        | {"y": int(y), "mean_ms": float(ms)}
        for (x, y), ms in zip(landscape.values, landscape.mean_ms, strict=True)
    ]
