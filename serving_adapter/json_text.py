"""JSON that others may have written: in files, in packets, in the fields of a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parsed(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """What it says; `pairs` makes the objects. ValueError where it is no JSON, or nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
