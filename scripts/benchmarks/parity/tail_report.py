"""The report of `parity-tail`: its tables as Markdown, what ParM and hedging gain, Fig. 10 as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from scripts.benchmarks.parity.tail_measurement import Measured
from scripts.benchmarks.parity.tail_rows import EQUAL, HEDGING, PAPER_TAILS, ServerAndLoad
from scripts.figures.drawing import SEQUENCE, label_lines_at_end, names, new_figure, save


class Series(NamedTuple):
    """The runs of one row of a table."""

    row: ServerAndLoad
    runs: Sequence[Measured]

    def median(self, name: str) -> float:
        return median(getattr(run, name) for run in self.runs)

    def ends(self, name: str) -> tuple[float, float]:
        values = [getattr(run, name) for run in self.runs]
        return min(values), max(values)

    @property
    def tail(self) -> float:
        """p99.9 in medians."""
        return self.median("p99_9_ms") / self.median("p50_ms")


class TailGain(NamedTuple):
    """What a row has over Equal-Resources; medians of the runs, for `ratio` the least and greatest, too."""

    label: str
    mode: str
    ratio: float  # of the gaps of p99.9 to the median, Equal-Resources' over its own
    least: float
    greatest: float
    lower: float  # by which share its p99.9 is lower
    median_shift_ms: float


def baseline_of(series: Series, table: Sequence[Series]) -> Series | None:
    """The row of Equal-Resources that it is compared with: of its label, or else the table's only one."""
    baselines = [one for one in table if one.row.mode == EQUAL]
    same = [one for one in baselines if one.row.label == series.row.label]
    found = same or (baselines if len(baselines) == 1 else [])
    return found[0] if found and series.row.mode != EQUAL else None


def gain(series: Series, table: Sequence[Series]) -> TailGain | None:
    """None where there is nothing to compare it with."""
    baseline = baseline_of(series, table)
    if baseline is None:
        return None
    pairs = zip(baseline.runs, series.runs, strict=True)
    ratios = [one.gap_ms / own.gap_ms for one, own in pairs]
    return TailGain(
        label=series.row.label,
        mode=series.row.shown_mode,
        ratio=baseline.median("gap_ms") / series.median("gap_ms"),
        least=min(ratios),
        greatest=max(ratios),
        lower=1 - series.median("p99_9_ms") / baseline.median("p99_9_ms"),
        median_shift_ms=series.median("p50_ms") - baseline.median("p50_ms"),
    )


def gains(table: Sequence[Series]) -> list[TailGain]:
    return [found for series in table if (found := gain(series, table)) is not None]


def beats_hedging(table: Sequence[Series]) -> bool:
    """Whether ParM gains more than any hedging of the same resources wherever both were measured.

    It is compared with that of its label, or else with all of the table.
    """
    ratios = [(series.row, found.ratio) for series in table if (found := gain(series, table)) is not None]
    for own, ratio in [one for one in ratios if one[0].is_parm]:
        hedging = [one for one in ratios if one[0].mode == HEDGING and one[0].k == own.k]
        same = [one for one in hedging if one[0].label == own.label] or hedging
        if any(other >= ratio for _, other in same):
            return False
    return True


def variations(table: Sequence[Series]) -> dict[str, float]:
    """By how much each mode's p99.9 varies over the rows of a table: greatest over least, less one."""
    tails_ms: dict[str, list[float]] = {}
    for series in table:
        tails_ms.setdefault(series.row.shown_mode, []).append(series.median("p99_9_ms"))
    return {mode: max(each) / min(each) - 1 for mode, each in tails_ms.items()}


def nearest_to_the_paper(table: Sequence[Series]) -> dict[str, str]:
    """Of each cluster, the row in which Equal-Resources' p99.9, in medians, is nearest to the paper's."""
    nearest: dict[str, Series] = {}
    for series in table:
        cluster = series.row.cluster
        middle = sum(PAPER_TAILS[cluster]) / 2
        before = nearest.get(cluster)
        if before is None or abs(series.tail - middle) < abs(before.tail - middle):
            nearest[cluster] = series
    return {cluster: series.row.label for cluster, series in nearest.items()}


def as_markdown(title: str, table: Sequence[Series]) -> str:
    """The median of each row's runs, and for p99.9 and the ratio the least and the greatest."""
    lines = [
        f"**{title}; {len(table[0].runs)} runs**",
        "",
        "| | mode | requests/s | p50 ms | p99 ms | p99.9 ms (min - max) | p99.9 / p50 | "
        "gap of Equal-Resources / its own (min - max) | p99.9 lower by | rebuilt | failed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for series in table:
        row, (least, greatest), found = series.row, series.ends("p99_9_ms"), gain(series, table)
        of_baseline = " | "
        if found is not None:
            ends = f"{found.least:.2f} - {found.greatest:.2f}"
            of_baseline = f"{found.ratio:.2f} ({ends}) | {found.lower:.0%}"
        lines.append(
            f"| {row.label} | {row.shown_mode} | {row.rate_per_s:.0f} | {series.median('p50_ms'):.1f} | "
            f"{series.median('p99_ms'):.1f} | {series.median('p99_9_ms'):.1f} ({least:.1f} - {greatest:.1f})"
            f" | {series.tail:.2f} | {of_baseline} | {series.median('reconstructed'):.1%} | "
            f"{sum(run.failed for run in series.runs)} |"
        )
    return "\n".join(lines)


def draw(path: Path, table: Sequence[Series]) -> None:
    """Fig. 10 of one cluster: p99.9 (solid, with the least and the greatest run) and median (dotted)."""
    figure, axes = new_figure(
        width=7.0,
        title="The tail under slow workers, k = 2",
        subtitle="99.9th percentile (line, bars from the least to the greatest run) and median (dots)",
    )
    ax = axes[0, 0]
    kinds = list(dict.fromkeys(series.row.shown_mode for series in table))
    for colour, kind in zip(SEQUENCE, kinds, strict=False):
        rows = [series for series in table if series.row.shown_mode == kind]
        rates = [series.row.rate_per_s for series in rows]
        tails = [series.median("p99_9_ms") for series in rows]
        below = [tail - row.ends("p99_9_ms")[0] for tail, row in zip(tails, rows, strict=True)]
        above = [row.ends("p99_9_ms")[1] - tail for tail, row in zip(tails, rows, strict=True)]
        ax.errorbar(rates, tails, yerr=(below, above), color=colour, linewidth=0, elinewidth=1.2, capsize=3)
        ax.plot(rates, tails, color=colour, linewidth=1.7, marker="o", markersize=3.5, label=kind)
        ax.plot(rates, [row.median("p50_ms") for row in rows], color=colour, linestyle=":", label=f"_{kind}")
    ax.set_ylim(bottom=0)
    names(ax, "requests/s", "ms")
    label_lines_at_end(ax)
    save(figure, path)
