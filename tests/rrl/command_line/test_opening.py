"""The grid that a run searches."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from rrl.command_line.opening import space_of
from rrl.tune_options import TuneOptions

FOUND = {"instances": 1, "max_batch_size": 8}


@pytest.mark.parametrize(
    ("knobs", "several_items", "sizes"),
    [
        ((), False, [1, 2, 4, 8, 16]),
        ((), True, [8, 16]),
        (("max_batch_size=1,4,16",), True, [8, 16]),
        (("max_batch_size=1,4",), True, [8]),
        (("instances=1:2",), True, None),
    ],
)
def test_batches_get_no_smaller_than_requests_may_be(
    knobs: tuple[str, ...], several_items: bool, sizes: list[int] | None
) -> None:
    target = SimpleNamespace(is_local=True, requests_hold_several_items=lambda: several_items)
    said = io.StringIO()
    console = Console(file=said, width=300)
    space = space_of(TuneOptions(target="localhost:8001", knobs=knobs), target, FOUND, FOUND, console)  # type: ignore[arg-type]
    assert space.to_json().get("max_batch_size") == sizes
    assert ("max_batch_size stays at 8 or above" in said.getvalue()) == (several_items and sizes is not None)
