"""RRL, Fig. 10: tasks of a request, durations of requests, and requests of the two arrival processes.

| the paper | here |
|---|---|
| number of tasks | operators that torch runs for one request, those inside another left out |
| request duration on CPU | from sending to answer, one request after another, one instance with all cores |
| Inception, ResNet (homogeneous), DeepSpeech (heterogeneous) | `served.models` |
| WiKi, "relatively steady" | `serving_adapter.load.arrivals.Wiki`, fitted to WikiBench's days |
| Dynamic, "more pronounced changes" | `serving_adapter.load.arrivals.Dynamic`, a mean for each hour |

The paper's text gives no numbers, only these words. The rules are in `_claims`. Durations are rows of
`rrl-fig10.jsonl` in the output folder, one for each model and round. The same command goes on with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_mean
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.served.measuring import loaded_server, on_this_machine
from scripts.figures.served.models import DEEPSPEECH, INCEPTION, RATES_PER_S, RESNET, ModelUnderLoad
from scripts.kept_rows import KeptRows
from serving_adapter import resources
from serving_adapter.load.arrivals import Dynamic, Wiki
from serving_adapter.models.loading import load_model
from serving_adapter.models.model import Model

NAME = "rrl-fig10"
ROWS = f"{NAME}.jsonl"
HOMOGENEOUS_SCV = 0.1  # squared coefficient of variation of durations, at most
TIMES_MORE = 3.0  # the heterogeneous model's is at least so many times the others'
MINUTE_S = 60.0
PERIOD_S = 3600.0  # of Dynamic


@dataclass(frozen=True)
class Figure10Setting:
    homogeneous: tuple[ModelUnderLoad, ...] = (INCEPTION, RESNET)
    heterogeneous: tuple[ModelUnderLoad, ...] = (DEEPSPEECH,)
    requests: int = 100  # of each round
    minutes: int = 2_000  # of the arrival processes

    @property
    def models(self) -> tuple[ModelUnderLoad, ...]:
        return (*self.homogeneous, *self.heterogeneous)


def run(out: Path, seeds: int, setting: Figure10Setting | None = None) -> FigureResult:
    """Writes rrl-fig10.png and its CSVs. `seeds` is the number of rounds, and of draws of the loads."""
    setting = setting or Figure10Setting()
    durations_ms = _durations(out / ROWS, seeds, setting)
    tasks = {model.label: operators(_built(model), _length(model)) for model in setting.models}
    loads = {name: minutes(name, setting.minutes, seeds) for name in ("WiKi", "Dynamic")}
    _draw(out / f"{NAME}.png", tasks, durations_ms, loads)
    write_csv(
        out / f"{NAME}.csv",
        [
            {"model": label, "round": k, "tasks": tasks[label], "duration_ms": float(ms)}
            for label, each in durations_ms.items()
            for k, row in enumerate(each)
            for ms in row
        ],
    )
    return FigureResult(
        title="RRL, Fig. 10: tasks, durations and numbers of requests",
        setting=f"rrl-serve with one instance on {resources.cores()} cores, {setting.requests} requests one "
        f"after another in each round. The two arrival processes at {RATES_PER_S[0]:g}/s in the mean, "
        f"{setting.minutes:,} minutes. One round and one draw of the processes for each seed:",
        seeds=seeds,
        claims=tuple(_claims(setting, tasks, durations_ms, loads)),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv", ROWS),
    )


def _durations(path: Path, rounds: int, setting: Figure10Setting) -> dict[str, np.ndarray]:
    """By model, (rounds, requests) durations. Rounds of one model follow one another, as a start is slow."""
    kept = KeptRows(path, ("model", "requests", "round"))
    for model in setting.models:
        model = on_this_machine(model, resources.cores())
        missing = [k for k in range(rounds) if _key(model, setting, k) not in kept]
        if not missing:
            continue
        with loaded_server(model) as server:
            server.apply({**model.fixed, "instances": 1})
            for k in missing:
                durations_ms = [round(ms, 3) for ms in server.durations_ms(setting.requests, seed=k)]
                kept.add(_key(model, setting, k) | {"durations_ms": durations_ms})
    return {
        model.label: np.array([kept[_key(model, setting, k)]["durations_ms"] for k in range(rounds)])
        for model in setting.models
    }


def _key(model: ModelUnderLoad, setting: Figure10Setting, k: int) -> dict[str, object]:
    name = " ".join((model.name, *model.options, model.sizes_text))
    return {"model": name, "requests": setting.requests, "round": k}


def _built(model: ModelUnderLoad) -> Model:
    return load_model(model.name, dict(text.split("=", 1) for text in model.options))


def _length(model: ModelUnderLoad) -> int:
    """A typical length of an input's variable dimension."""
    return int(np.median(model.sizes.sample(np.random.default_rng(0), 1001)))


def operators(model: Model, length: int) -> int:
    """How many operators of torch one request runs. An operator that another one calls is not counted.

    Without Kineto, whose traces may end a process when they are collected after others (torch 2.13).
    """
    inputs = [
        torch.zeros([1, *(length if size < 0 else size for size in spec.shape)]) for spec in model.inputs
    ]
    with torch.no_grad(), torch.autograd.profiler.profile(use_kineto=False) as profile:
        model.module(*inputs)
    events = [event for event in profile.function_events or () if event.name.startswith("aten::")]
    inside = {id(child) for event in events for child in event.cpu_children}
    return sum(id(event) not in inside for event in events)


def minutes(process: str, count: int, draws: int) -> np.ndarray:
    """(draws, minutes) numbers of requests."""
    rate_per_s = RATES_PER_S[0]
    counts = np.empty((draws, count), dtype=int)
    for k in range(draws):
        rng = np.random.default_rng(k)
        if process == "WiKi":
            steps = Wiki(rate_per_s, day_s=1440 * MINUTE_S).steps(rng)
            means = np.array([rate for _, rate in islice(steps, count)])
        else:
            periods = Dynamic(rate_per_s, period_s=PERIOD_S).steps(rng)
            per_period = int(PERIOD_S / MINUTE_S)
            means = np.repeat([rate for _, rate in islice(periods, -(-count // per_period))], per_period)
        counts[k] = rng.poisson(MINUTE_S * means[:count])
    return counts


def scv(durations_ms: np.ndarray) -> np.ndarray:
    """(rounds,) squared coefficients of variation of (rounds, requests)."""
    result: np.ndarray = durations_ms.var(axis=1) / durations_ms.mean(axis=1) ** 2
    return result


def largest_change(counts: np.ndarray) -> np.ndarray:
    """(draws,) by what factor the load of an hour differs from that of the hour before: the largest."""
    hours = counts[:, : counts.shape[1] // 60 * 60].reshape(len(counts), -1, 60).mean(axis=2)
    changes: np.ndarray = np.exp(np.abs(np.diff(np.log(np.maximum(hours, 1.0)), axis=1)).max(axis=1))
    return changes


def _claims(
    setting: Figure10Setting,
    tasks: Mapping[str, int],
    durations_ms: Mapping[str, np.ndarray],
    loads: Mapping[str, np.ndarray],
) -> list[Claim]:
    variation = {label: bootstrap_mean(scv(each)) for label, each in durations_ms.items()}
    even = [variation[model.label] for model in setting.homogeneous]
    claims = [
        Claim(f"tasks of a request: {label}", "no number in the text", f"{count:,}", NO_CLAIM)
        for label, count in tasks.items()
    ]
    for model in setting.models:
        interval, each = variation[model.label], durations_ms[model.label]
        is_even = model in setting.homogeneous
        verdict = _even_verdict(interval) if is_even else _uneven_verdict(interval, even)
        ours = f"SCV {interval.text('.3f')}, median {np.median(each):.0f} ms"
        word = "homogeneous" if is_even else "heterogeneous"
        claims.append(Claim(f"durations of requests: {model.label}", word, ours, verdict))
    steady, changing = (bootstrap_mean(largest_change(loads[name])) for name in ("WiKi", "Dynamic"))
    verdict = REPRODUCES if steady.high < changing.low else PARTLY
    verdict = verdict if steady.estimate < changing.estimate else FAILS
    return [
        *claims,
        Claim(
            "largest change of the load from an hour to the next: WiKi, and Dynamic",
            "Dynamic's changes are more pronounced",
            f"{steady.text('.1f')} times, and {changing.text('.1f')} times",
            verdict,
        ),
    ]


def _even_verdict(variation: BootstrapInterval) -> str:
    return REPRODUCES if variation.high <= HOMOGENEOUS_SCV else FAILS


def _uneven_verdict(variation: BootstrapInterval, even: Sequence[BootstrapInterval]) -> str:
    others = max((each.estimate for each in even), default=0.0)
    if variation.low <= others:
        return FAILS
    return REPRODUCES if variation.estimate >= TIMES_MORE * others else PARTLY


def _draw(
    path: Path,
    tasks: Mapping[str, int],
    durations_ms: Mapping[str, np.ndarray],
    loads: Mapping[str, np.ndarray],
) -> None:
    figure, axes = drawing.new_figure(
        1,
        3,
        width=4.3,
        height=3.3,
        title="RRL, Fig. 10: tasks, durations and numbers of requests",
        subtitle="durations of all rounds; loads of the first draw",
    )
    left, middle, right = axes[0]
    colours = dict(zip(durations_ms, figure_style.COLOURS, strict=False))
    left.bar(range(len(tasks)), list(tasks.values()), color=list(colours.values()), width=0.6)
    left.set_xticks(range(len(tasks)), list(tasks), fontsize=7)
    drawing.names(left, "", "operators a request")
    for label, each in durations_ms.items():
        ordered = np.sort(each, axis=None) / np.median(each)
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        middle.plot(ordered, share, color=colours[label], linewidth=1.6, label=label)
    middle.set_xlim(0, 4)
    middle.legend(fontsize=7, frameon=False)
    drawing.names(middle, "duration over the median", "share of requests")
    for (name, counts), colour in zip(
        loads.items(), (figure_style.BLUE, figure_style.VERMILION), strict=True
    ):
        right.plot(counts[0], color=colour, linewidth=0.8, label=name)
    right.set_ylim(0, None)
    right.legend(fontsize=7, frameon=False)
    drawing.names(right, "minute", "requests a minute")
    drawing.save(figure, path)
