"""`rrl-compare`: agents x machines x seeds on one bench."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from baselines import called_now
from baselines.comparison import decisions, summary, tables, tensorboard
from baselines.comparison.comparison import run_comparison
from baselines.comparison.endings import make_output, told_in_a_sentence, warn
from baselines.comparison.failures import NoResults, RunsFailed
from baselines.comparison.options import CompareOptions
from baselines.comparison.progress import make_progress
from baselines.comparison.settings import ComparisonSettings
from serving_adapter.flags.parsing import parse


def main(argv: list[str] | None = None) -> None:
    options = parse(CompareOptions, argv)
    present = [called_now(name.strip()) for name in options.agents.split(",")]
    options = replace(options, agents=",".join(present))
    with told_in_a_sentence(options.out):
        _compare(options, make_output())


def _compare(options: CompareOptions, console: Console) -> None:
    settings = options.settings()
    progress = make_progress(console)
    failure = None
    try:
        table: np.ndarray | None = run_comparison(
            settings, options.out, progress=progress, warn=warn, executor=options.executor()
        )
    except RunsFailed as error:
        failure, table = error, error.whole
    finally:
        progress.close()
    if table is not None:
        write_results(options.out, table, settings, console)
    elif failure is not None:
        raise NoResults(failure, options.out / decisions.FILE_NAME)
    if failure is not None:
        raise failure


def write_results(folder: Path, table: np.ndarray, settings: ComparisonSettings, console: Console) -> None:
    """Every view of a table of decisions: CSV, TensorBoard events, pictures, and tables in the terminal."""
    slowdown = settings.make_scenarios()[0].slowdown
    named = summary.figures(
        settings.make_objective().unit,
        slo=settings.slo_p95_ms is not None,
        slowdown=None if slowdown is None else slowdown[0],
    )
    rows, multiples = summary.summarise(table, named), summary.excess_multiples(table)
    decisions.write_decisions(folder / decisions.FILE_NAME, table)
    summary.write_summary(folder / summary.FILE_NAME, rows)
    summary.write_multiples(folder / summary.MULTIPLES_FILE_NAME, multiples)
    tensorboard.write(folder / tensorboard.FOLDER, table)
    from baselines.comparison import plots  # Matplotlib takes its time

    pictures = plots.draw(folder, table, settings)
    for each in tables.summary_tables(rows, console.width):
        console.print(each)
    matrix = tables.multiples_table(multiples, tables.by_excess(rows))
    if tables.fits(matrix, console.width):
        console.print(matrix)
    files = (decisions.FILE_NAME, summary.FILE_NAME, summary.MULTIPLES_FILE_NAME)
    names = ", ".join((*files, *(path.name for path in pictures)))
    console.print(f"in {folder}: {names}; tensorboard --logdir {folder / tensorboard.FOLDER}", soft_wrap=True)


if __name__ == "__main__":
    main()
