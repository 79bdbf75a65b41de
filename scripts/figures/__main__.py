"""Draws one figure or table of a paper, as PNG + CSV, and says what it shows beside what the paper says.

`scripts/reproduce FIGURE [--out DIR] [--seeds N]` writes the pictures, the CSVs they are drawn from and
FIGURE.json into DIR. From that file `scripts/reproduce results --out DIR` writes the tables of docs/results.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from scripts.figures import results
from scripts.figures.head_to_head import FILE_NAME as HEAD_TO_HEAD_ROWS
from scripts.figures.head_to_head import head_to_head_tables, kept_runs
from scripts.figures.result import FigureResult
from scripts.figures.rrl.long_runs import LongRunsSetting
from serving_adapter.flags.parsing import fail, in_a_sentence, parse
from serving_adapter.standard_streams import say


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table that can be drawn."""

    text: str  # what it shows, in a few words
    run: str  # "module:function" in scripts.figures; called with the output folder and the number of seeds
    is_long: bool = False  # called with a `LongRunsSetting`, too


FIGURES = {
    "rrl-fig3": PaperFigure("latency by parallelism, on the real server", "rrl.fig3:run"),
    "rrl-fig4": PaperFigure(
        "latency over two knobs at two loads, all and zoomed in, on the real server",
        "rrl.fig4:run",
    ),
    "rrl-fig5": PaperFigure(
        "the same for two batching knobs, on a simulated stand-in of a GPU",
        "rrl.fig5:run",
    ),
    "rrl-fig6": PaperFigure(
        "difference of latency by distance of configurations, on the real server and in simulation",
        "rrl.fig6:run",
    ),
    "rrl-fig10": PaperFigure(
        "tasks and durations of requests, and the numbers of requests of the loads",
        "rrl.fig10:run",
    ),
    "rrl-ftrl": PaperFigure("FTRL against Adam, AdaGrad and SGD for the latency estimator", "rrl.ftrl:run"),
    "rrl-machines": PaperFigure(
        "Inception-V3 and DeepSpeech 2 as machines, profiled on the real server",
        "rrl.machines:run",
    ),
    "rrl-fig11": PaperFigure(
        "region size: decisions until converged, and distance from the optimal Q",
        "rrl.fig11:run",
    ),
    "rrl-fig12": PaperFigure(
        "latency over time, three CPU knobs, WiKi and Dynamic: RRL, CAPES, DeepRM",
        "rrl.fig12:run",
        is_long=True,
    ),
    "rrl-fig12-small": PaperFigure("the same with two knobs", "rrl.fig12:run_small", is_long=True),
    "rrl-fig12-served": PaperFigure(
        "the same on machine files, such as rrl-machines makes of served models",
        "rrl.fig12:run_served",
        is_long=True,
    ),
    "rrl-fig13": PaperFigure(
        "the same for batching knobs, on a simulated stand-in of a GPU",
        "rrl.fig13:run",
        is_long=True,
    ),
    "rrl-fig14": PaperFigure(
        "latency CCDF of the runs of Figs. 12 and 13, and how often they break a strict SLO",
        "rrl.fig14:run",
        is_long=True,
    ),
    "rrl-fig15": PaperFigure(
        "an SLO with least resources: latency, utilisation and threads over time",
        "rrl.fig15:run",
        is_long=True,
    ),
    "rrl-sensitivity": PaperFigure(
        "RRL's latency by what its paper leaves open: δ, γ, β, and the cut of load levels",
        "rrl.sensitivity:run",
        is_long=True,
    ),
    "rrl-theorem": PaperFigure("the gap and the rate of Algorithm 1 against Theorem 4.1", "rrl.theorem:run"),
    "serf-fig2": PaperFigure(
        "latency of every configuration of one node at a low and a high load",
        "serf.fig2:run",
    ),
    "serf-fig3": PaperFigure(
        "speed-up of service by intra-node, inter-node and service parallelism",
        "serf.fig3:run",
    ),
    "serf-fig4": PaperFigure("intra-node speed-up by inter-node parallelism", "serf.fig4:run"),
    "serf-fig5": PaperFigure("how alike service times are, on the real server", "serf.fig5:run"),
    "serf-fig6": PaperFigure("interference among requests in service", "serf.fig6:run"),
    "serf-fig7": PaperFigure("six configurations by load (Table I, too)", "serf.fig7:run"),
    "serf-fig9": PaperFigure("four queueing models against measurement", "serf.fig9:run"),
    "serf-fig11": PaperFigure("prediction errors of SERF's model", "serf.fig11:run"),
    "serf-fig12": PaperFigure("best configuration by load", "serf.fig12:run"),
    "serf-fig13": PaperFigure(
        "latency under changing load: SERF against fixed configurations",
        "serf.fig13:run",
    ),
    "serf-fig14": PaperFigure("prediction errors on five served models", "serf.fig14:run"),
    "serf-table2": PaperFigure(
        "what filling the reference table costs: exhaustive profiling and SERF",
        "serf.table2:run",
    ),
}
RESULTS = "results"
HEAD_TO_HEAD = "triton-head-to-head"  # a table that is no figure's
PAGES = {"rrl": Path("docs/results/rrl.md"), "serf": Path("docs/results/serf.md")}
"""The page of each paper, by the first word of its figures' names."""
TRITON_PAGE = Path("docs/results/triton.md")
"""Where the runs on a real Triton stand."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Draws one figure or table of a paper as PNG + CSV; `results` writes the tables of docs/results."""

    figure: tyro.conf.Positional[str] = ""
    """Which one (see --list), or results."""
    list: bool = False
    """Name all figures and end."""
    out: Path = Path("runs/figures")
    """Folder for PNG, CSV and JSON; for results, the folder to read."""
    seeds: int = 10
    """Runs of each agent, each with its own seed."""
    kept: Path = LongRunsSetting.kept
    """Folder of finished runs, which RRL's Figs. 12 to 15 share. The same command goes on with them."""
    wiki_trace: Path | None = None
    """For RRL's Figs. 12 to 14: the WiKi load, requests by the minute (else a synthetic one)."""
    machines: tuple[Path, ...] = ()
    """For rrl-fig12-served: machine files (else those that rrl-machines left in --out)."""
    panels: tuple[str, ...] = ()
    """For rrl-fig12 and rrl-fig12-small: only these, e.g. WiKi:Inception-like (else all)."""

    def __post_init__(self) -> None:
        if not self.list and self.figure not in (*FIGURES, RESULTS):
            what = f"unknown figure {self.figure!r}" if self.figure else "no figure is named"
            raise ValueError(
                f"{what}; known: {', '.join(FIGURES)}, and {RESULTS} for the tables of docs/results"
            )
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")
        is_long = self.figure in FIGURES and FIGURES[self.figure].is_long
        if (self.wiki_trace or self.machines or self.panels) and not is_long:
            known = ", ".join(name for name, figure in FIGURES.items() if figure.is_long)
            raise ValueError(
                f"--wiki-trace, --machines and --panels belong to {known}, not to {self.figure!r}"
            )


def reproduce(options: ReproduceOptions) -> FigureResult:
    """Runs one figure and saves its result beside its pictures."""
    figure, out = FIGURES[options.figure], options.out
    module, _, function = figure.run.partition(":")
    run = getattr(importlib.import_module(f"scripts.figures.{module}"), function)
    out.mkdir(parents=True, exist_ok=True)
    long = LongRunsSetting(options.kept, options.wiki_trace, options.machines, options.panels)
    result: FigureResult = run(out, options.seeds, long) if figure.is_long else run(out, options.seeds)
    result.save(out / f"{options.figure}.json")
    return result


def write_tables(options: ReproduceOptions) -> None:
    """Writes each page's tables for which there are files, and says which."""
    for first_word, page in PAGES.items():
        names = tuple(name for name in FIGURES if name.startswith(f"{first_word}-"))
        _say(page, results.update(page, results.figures(page, options.out, names)))
    runs = list(kept_runs(options.out / HEAD_TO_HEAD_ROWS))
    head_to_head = {HEAD_TO_HEAD: head_to_head_tables(runs)} if runs else {}
    _say(TRITON_PAGE, results.update(TRITON_PAGE, head_to_head))


def _say(page: Path, written: list[str]) -> None:
    print(f"{page}: {', '.join(written) or 'nothing to write'}")


def main(argv: list[str] | None = None) -> int:
    options = parse(ReproduceOptions, argv)
    if options.list:
        for name, figure in FIGURES.items():
            say(f"{name:16} {figure.text}")
        return 0
    torch.set_num_threads(1)
    try:
        if options.figure == RESULTS:
            write_tables(options)
            return 0
        result = reproduce(options)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        fail(in_a_sentence(error))
    print(f"{result.title}\n{result.setting}\n\n{results.claims_table(result)}\n")
    print("\n".join(str(options.out / name) for name in (*result.pictures, *result.tables)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
