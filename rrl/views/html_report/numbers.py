"""Numbers as people read them, and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rrl.views.confidence import Estimate

NOTHING = "–"


def ms(value: float) -> str:
    """About three digits, without a unit."""
    if not math.isfinite(value):
        return NOTHING
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def in_figures(value: float) -> str:
    """A round number, as at the tick of an axis: `0.5`, `20,000`. It has never an exponent."""
    whole, _, part = f"{value:,.10f}".partition(".")
    part = part.rstrip("0")
    return f"{whole}.{part}" if part else whole


def four_digits(value: float) -> str:
    """About four digits, without an exponent: `60.13`, `12,350`."""
    return in_figures(float(f"{value:.4g}"))


def bounds(estimate: Estimate) -> str:
    return f"{ms(estimate.low)} to {ms(estimate.high)}" if estimate.known else ""


def times(ratio: float) -> str:
    """How many times, in as many digits as it can bear: `1.58x`, `33x`."""
    if not math.isfinite(ratio):
        return NOTHING
    return f"{ratio:,.0f}x" if ratio >= 9.95 else f"{ratio:.2f}x"


def lower_or_higher(before: float, after: float) -> str:
    """`1.58x lower`, `1.20x higher` or `the same`."""
    if not (before > 0 and after > 0 and math.isfinite(before) and math.isfinite(after)):
        return NOTHING
    ratio = before / after
    if times(ratio) == times(1.0):
        return "the same"
    return f"{times(ratio)} lower" if ratio > 1 else f"{times(1 / ratio)} higher"


def duration(seconds: float) -> str:
    """`45 s`, `12.3 min` or `2 h 05 min`."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: int, one: str, many: str = "") -> str:
    """`1 interval`, `2 intervals`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share_of_log(value: float, low: float, high: float) -> float:
    """Where a value is between two others, on a logarithmic scale: 0 .. 1 inside."""
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers inside a range: the fewer of each decade, the longer the range. At least two."""
    ticks: list[float] = []
    for digits in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [d * 10.0**k for k in decades for d in digits if low <= d * 10.0**k <= high]
        if len(ticks) <= most:
            break
    return ticks if len(ticks) > 1 else _ticks_between(low, high, most)


def linear_ticks(high: float, most: int) -> list[float]:
    """Round numbers from 0 to at most `high`."""
    if not 0 < high < math.inf:
        return [0.0]
    return _ticks_between(0.0, high, most)


def _ticks_between(low: float, high: float, most: int) -> list[float]:
    """Round numbers as far apart each."""
    rough = (high - low) / most
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(s * decade for s in (1, 2, 5, 10) if s * decade >= rough * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), int(high / step + 1e-9) + 1)]


def minute_ticks(minutes: float, most: int = 5) -> list[tuple[float, str]]:
    """(minutes, label) of round times from 0 on: seconds, minutes or hours."""
    steps_min = [s / 60 for s in (1, 2, 5, 10, 20, 30)] + [1, 2, 5, 10, 20, 30]
    steps_min += [60.0 * h for h in (1, 2, 3, 6, 12, 24, 48, 96, 168)]
    step = next((s for s in steps_min if minutes / s <= most), steps_min[-1])
    ticks = [k * step for k in range(int(minutes / step + 1e-9) + 1)]
    if step < 1:
        return [(t, f"{60 * t:.0f} s") for t in ticks]
    return [(t, f"{t:.0f} min") if step < 60 else (t, f"{t / 60:.0f} h") for t in ticks]


def finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
