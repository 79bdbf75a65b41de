"""The report of `parity-tail`: its tables as Markdown, every run as CSV, Fig. 10 as a picture."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from scripts.figures.drawing import SEQUENCE, label_lines_at_end, names, new_figure, save


class Measured(NamedTuple):
    """One run."""

    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    failed: int
    reconstructed: float  # share of the requests
    late_ms: float  # the client's own lag, p99

    @property
    def gap_ms(self) -> float:
        return self.p99_9_ms - self.p50_ms


class Series(NamedTuple):
    """The runs of one row of a table."""

    label: str
    mode: str
    rate_per_s: float
    runs: list[Measured]

    def median(self, name: str) -> float:
        return median(getattr(run, name) for run in self.runs)

    def ends(self, name: str) -> tuple[float, float]:
        values = [getattr(run, name) for run in self.runs]
        return min(values), max(values)


def as_markdown(title: str, series: Sequence[Series]) -> str:
    """A table with the median of each row's runs, and for p99.9 the least and the greatest."""
    lines = [
        f"**{title}**",
        "",
        "| | mode | requests/s | p50 ms | p99 ms | p99.9 ms (min - max) | p99.9 - p50 | rebuilt | failed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in series:
        least, greatest = row.ends("p99_9_ms")
        failed = sum(run.failed for run in row.runs)
        lines.append(
            f"| {row.label} | {row.mode} | {row.rate_per_s:.0f} | {row.median('p50_ms'):.1f} | "
            f"{row.median('p99_ms'):.1f} | {row.median('p99_9_ms'):.1f} ({least:.1f} - {greatest:.1f}) | "
            f"{row.median('gap_ms'):.1f} | {row.median('reconstructed'):.1%} | {failed} |"
        )
    return "\n".join(lines)


def save_tables(folder: Path, tables: Mapping[str, tuple[str, Sequence[Series]]]) -> None:
    """`parity-tail-TABLE.csv` for each table (title, rows), and the picture of the table `rate`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, series) in tables.items():
        with (folder / f"parity-tail-{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["label", "mode", "rate_per_s", "run", *Measured._fields])
            for row in series:
                for number, run in enumerate(row.runs):
                    writer.writerow([row.label, row.mode, round(row.rate_per_s, 1), number, *run])
    if "rate" in tables:
        _draw(folder / "parity-tail.png", tables["rate"][1])


def _draw(path: Path, series: Sequence[Series]) -> None:
    """Fig. 10: p99.9 (solid) and median (dotted) by load."""
    figure, axes = new_figure(
        width=7.0,
        title="The tail under slow workers, k = 2",
        subtitle="99.9th percentile (line, bars from the least to the greatest run) and median (dots)",
    )
    ax = axes[0, 0]
    kinds = list(dict.fromkeys(_kind(row) for row in series))
    for colour, kind in zip((SEQUENCE[0], SEQUENCE[2], SEQUENCE[4]), kinds, strict=False):
        rows = [row for row in series if _kind(row) == kind]
        rates = [row.rate_per_s for row in rows]
        tails = [row.median("p99_9_ms") for row in rows]
        below = [tail - row.ends("p99_9_ms")[0] for tail, row in zip(tails, rows, strict=True)]
        above = [row.ends("p99_9_ms")[1] - tail for tail, row in zip(tails, rows, strict=True)]
        ax.errorbar(rates, tails, yerr=(below, above), color=colour, linewidth=0, elinewidth=1.2, capsize=3)
        ax.plot(rates, tails, color=colour, linewidth=1.7, marker="o", markersize=3.5, label=kind)
        ax.plot(rates, [row.median("p50_ms") for row in rows], color=colour, linestyle=":", label=f"_{kind}")
    ax.set_ylim(bottom=0)
    names(ax, "requests/s", "ms")
    label_lines_at_end(ax)
    save(figure, path)


def _kind(row: Series) -> str:
    """A line of the picture: "60%" of equal-resources, "60%, paper's" of parity."""
    _, comma, variant = row.label.partition(", ")
    name = {"equal-resources": "Equal-Resources", "parity": "ParM"}[row.mode]
    return f"{name}, {variant}" if comma else name
