"""How many rows an exported program takes, and how long its inputs may be: its range constraints.

A program checks them when it runs. So a batch that is too large would fail all the requests in it, and a
request that is too long everybody who shares its batch. Here they become limits that are checked before.

A lower limit of 2 says nothing: torch assumes it of every dimension while it exports. A batch of one row is
run when the server starts, which fails in a sentence where the program does not take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from serving_adapter.models.model import ModelError
from serving_adapter.tensors import TensorSpec

UNLIMITED = 1 << 31  # what torch writes for "any" is above it
LEAST_THAT_COUNTS = 3


class ExportLimits(NamedTuple):
    inputs: tuple[TensorSpec, ...]
    """As specified, their `max_size` lowered to what the program takes."""
    max_rows: int | None


def export_limits(
    inputs: Sequence[TensorSpec], shapes: Sequence[Sequence[Any]], ranges: Mapping[Any, Any]
) -> ExportLimits:
    """The limits of a program with inputs of these shapes, by its `range_constraints`.

    ModelError, in one sentence, for a program that takes no batch of few rows.
    """
    rows = [limit for shape in shapes if (limit := _upper(shape[0], ranges)) is not None]
    least = max((_lower(shape[0], ranges) for shape in shapes), default=0)
    if least >= LEAST_THAT_COUNTS:
        raise ModelError(
            f"it was exported for batches of at least {least} rows, and a request may have one; export it "
            'with torch.export.Dim("batch", min=1)'
        )
    limited = []
    for spec, shape in zip(inputs, shapes, strict=True):
        sizes = [limit for size in shape[1:] if (limit := _upper(size, ranges)) is not None]
        given = [] if spec.max_size is None else [spec.max_size]
        limited.append(replace(spec, max_size=min([*sizes, *given], default=None)))
    return ExportLimits(tuple(limited), min(rows, default=None))


def _upper(size: Any, ranges: Mapping[Any, Any]) -> int | None:
    """The greatest length of a dimension; None if it is fixed or has no limit."""
    if isinstance(size, int):
        return None
    found = ranges.get(size.node.expr)
    text = "" if found is None else str(found.upper)
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None


def _lower(size: Any, ranges: Mapping[Any, Any]) -> int:
    found = None if isinstance(size, int) else ranges.get(size.node.expr)
    text = "" if found is None else str(found.lower)
    return int(text) if text.isdecimal() else 0
