"""Pieces of charts that fit any width without a script: x in per cent, y in pixels.

Text and marks keep their size, as only lines and areas are stretched (`stretched`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from xml.etree.ElementTree import Element

from rrl.views.html_report.markup import Children, percent, tag

STRETCHED_WIDTH = 1000  # The width in which stretched pieces are drawn.

Point = tuple[float, float]
"""Share of the width, pixels from the top."""


def plot(height: float, label: str, *children: Children, class_: str = "") -> Element:
    """A chart as wide as its place. `label` is what it says to those who do not see it."""
    return tag(
        "svg", *children,
        class_=f"plot {class_}".strip(), width="100%", height=height, role="img", aria_label=label,
    )  # fmt: skip


def stretched(height: float, *children: Children) -> Element:
    return tag(
        "svg", *children,
        viewBox=f"0 0 {STRETCHED_WIDTH} {height:g}", preserveAspectRatio="none", width="100%", height=height,
    )  # fmt: skip


def line(points: Iterable[Point | None], class_: str) -> Element:
    """A line through the points, broken where there is None."""
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        parts.append(f"{pen}{_pair(point)}")
        pen = "L"
    return _path("".join(parts), class_)


def stairs(
    edges: Sequence[float], heights: Sequence[float | None], class_: str, floor: float | None = None
) -> Element:
    """A level for each span between edges (shares of the width). Filled down to `floor`, if given."""
    parts: list[str] = []
    begin: float | None = None  # Where the piece being drawn begins.
    for i, y in enumerate(heights):
        if y is None:
            continue
        if begin is None:
            begin = edges[i]
            parts.append(f"M{_pair((begin, y))}")
        elif y != heights[i - 1]:
            parts.append(f"V{_short(y)}")
        following = heights[i + 1] if i + 1 < len(heights) else None
        if following != y:
            parts.append(f"H{_short(STRETCHED_WIDTH * edges[i + 1])}")
        if following is None:
            if floor is not None:
                parts.append(f"V{_short(floor)}H{_short(STRETCHED_WIDTH * begin)}Z")
            begin = None
    return _path("".join(parts), class_)


def area(reach: Sequence[tuple[float, float, float]], y: Callable[[float], float], class_: str) -> Element:
    """Between the lowest and the highest value at each share of the width."""
    there = [_pair((x, y(low))) for x, low, _ in reach]
    back = [_pair((x, y(high))) for x, _, high in reversed(reach)]
    return _path("M" + "L".join(there + back) + "Z" if reach else "", class_)


def band(begin: float, end: float, height: float, class_: str, title: str = "") -> Element:
    return tag(
        "rect", tag("title", title) if title else None,
        x=percent(begin), y=0, width=percent(max(end - begin, 0.0)), height=height, class_=class_,
    )  # fmt: skip


def level(y: float, class_: str) -> Element:
    """A horizontal line right across."""
    return tag("line", x1="0", x2="100%", y1=y, y2=y, class_=class_)


def upright(x: float, y1: float, y2: float, class_: str, title: str = "") -> Element:
    x_text = percent(x)
    return tag(
        "line", tag("title", title) if title else None, x1=x_text, x2=x_text, y1=y1, y2=y2, class_=class_
    )


def dot(x: float, y: float, radius: float, class_: str) -> Element:
    return tag("circle", cx=percent(x), cy=y, r=radius, class_=class_)


def mark(symbol: str, x: float, y: float, title: str = "") -> Element:
    """One of `SYMBOLS`, which must be in the page."""
    return tag(
        "use", tag("title", title) if title else None,
        href=f"#{symbol}", x=percent(x), y=y, class_=f"mark {symbol}",
    )  # fmt: skip


def words(
    x: str, y: float, text: str, anchor: str = "start", class_: str = "tick", dx: float | None = None
) -> Element:
    return tag("text", text, x=x, y=y, dx=dx, text_anchor=anchor, class_=class_)


SYMBOLS = {
    "aborted": "M-4-4 4 4M4-4-4 4",
    "rolled-back": "M0-5 5 0 0 5-5 0Z",
    "failed": "M0-5.5 5.5 4-5.5 4Z",
}


def symbols() -> Element:
    """The marks' shapes, once a page."""
    shapes = [tag("path", id=name, d=d) for name, d in SYMBOLS.items()]
    return tag("svg", tag("defs", *shapes), width=0, height=0, class_="shapes", aria_hidden="true")


def _path(d: str, class_: str) -> Element:
    return tag("path", d=d, class_=class_, vector_effect="non-scaling-stroke")


def _pair(point: Point) -> str:
    return f"{_short(STRETCHED_WIDTH * point[0])} {_short(point[1])}"


def _short(value: float) -> str:
    text = f"{value:.1f}" if math.isfinite(value) else "0"
    return text[:-2] if text.endswith(".0") else text
