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
from scripts.figures.result import FigureResult
from serving_adapter.options import fail, in_a_sentence, parse

FIGURES = {
    "rrl-fig3": "latency by parallelism, on the real server",
    "rrl-fig4": "latency over two knobs at two loads, all and zoomed in, on the real server",
    "rrl-fig5": "the same for two batching knobs, on a simulated stand-in of a GPU",
    "rrl-fig6": "difference of latency by distance of configurations, on the real server and in simulation",
    "rrl-fig10": "tasks and durations of requests, and the numbers of requests of the loads",
    "rrl-ftrl": "FTRL against Adam, AdaGrad and SGD for the latency estimator",
    "rrl-machines": "Inception-V3 and DeepSpeech 2 as machines, profiled on the real server",
    "rrl-fig11": "region size: decisions until converged, and distance from the optimal Q",
    "rrl-fig12": "latency over time, CPU knobs, WiKi and Dynamic: RRL, CAPES, DeepRM",
    "rrl-fig13": "the same for batching knobs, on a simulated stand-in of a GPU",
    "rrl-fig14": "latency CCDF under a strict SLO, and the share of violations",
    "rrl-fig15": "an SLO with least resources: latency and CPU use over time",
    "serf-fig2": "latency of every configuration of one node at a low and a high load",
    "serf-fig3": "speed-up of service by intra-node, inter-node and service parallelism",
    "serf-fig4": "intra-node speed-up by inter-node parallelism",
    "serf-fig5": "how alike service times are, on the real server",
    "serf-fig6": "interference among requests in service",
    "serf-fig7": "six configurations by load (Table I, too)",
    "serf-fig9": "four queueing models against measurement",
    "serf-fig11": "prediction errors of SERF's model",
    "serf-fig12": "best configuration by load",
    "serf-fig13": "latency under changing load: SERF against fixed configurations",
    "serf-fig14": "prediction errors on five served models",
    "serf-table2": "what filling the reference table costs: exhaustive profiling and SERF",
}
RESULTS = "results"
PAGES = {"rrl": Path("docs/results/rrl.md"), "serf": Path("docs/results/serf.md")}
"""The page of each paper, by the first word of its figures' names."""
LEARNER_PAGE = Path("docs/results/learner.md")
"""Where the table of the default agent's reach stands."""


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
    comparisons: tuple[Path, ...] = ()
    """For results: folders that rrl-compare wrote, for the table of the default agent's reach."""

    def __post_init__(self) -> None:
        if not self.list and self.figure not in (*FIGURES, RESULTS):
            what = f"unknown figure {self.figure!r}" if self.figure else "which figure?"
            raise ValueError(
                f"{what}; known: {', '.join(FIGURES)}, and {RESULTS} for the tables of docs/results"
            )
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")


def reproduce(name: str, out: Path, seeds: int) -> FigureResult:
    """Runs one figure and saves its result beside its pictures."""
    module = importlib.import_module(f"scripts.figures.{name.replace('-', '_')}")
    out.mkdir(parents=True, exist_ok=True)
    result: FigureResult = module.run(out, seeds)
    result.save(out / f"{name}.json")
    return result


def write_tables(options: ReproduceOptions) -> None:
    """Writes each page's tables for which there are files, and says which."""
    for first_word, page in PAGES.items():
        names = tuple(name for name in FIGURES if name.startswith(f"{first_word}-"))
        _say(page, results.update(page, options.out, names, ()))
    _say(LEARNER_PAGE, results.update(LEARNER_PAGE, options.out, (), options.comparisons))


def _say(page: Path, written: list[str]) -> None:
    print(f"{page}: {', '.join(written) or 'nothing to write'}")


def main(argv: list[str] | None = None) -> int:
    options = parse(ReproduceOptions, argv)
    if options.list:
        for name, text in FIGURES.items():
            print(f"{name:12} {text}")
        return 0
    torch.set_num_threads(1)
    try:
        if options.figure == RESULTS:
            write_tables(options)
            return 0
        result = reproduce(options.figure, options.out, options.seeds)
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
