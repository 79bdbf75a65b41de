"""The space that a run searches, around what the server has in force."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from rrl.command_line.opening.search_space import space_of
from rrl.command_line.options.options import TuneOptions
from rrl.space import ConfigurationSpace
from serving_adapter.knob_limits import KNOBS

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
    space, said = asked(knobs, several_items)
    assert space.to_json().get("max_batch_size") == sizes
    assert ("max_batch_size stays at 8 or above" in said) == (several_items and sizes is not None)


def asked(
    knobs: tuple[str, ...],
    several_items: bool = True,
    found: dict[str, int] = FOUND,
    start: dict[str, int] = FOUND,
    resume: Path | None = None,
    pin: tuple[str, ...] = (),
) -> tuple[ConfigurationSpace, str]:
    target = SimpleNamespace(
        is_local=True,
        model="minilm",
        cores=None,
        room=lambda: None,
        requests_hold_several_items=lambda: several_items,
        knobs=lambda: {name: KNOBS[name] for name in found},
    )
    said = io.StringIO()
    options = TuneOptions(target="localhost:8001", knobs=knobs, resume=resume, pin=pin)
    space = space_of(options, target, found, start, Console(file=said, width=300))  # type: ignore[arg-type]
    return space, said.getvalue()


def test_batches_are_pinned_to_none_that_requests_do_not_fit_into() -> None:
    assert asked((), False, pin=("max_batch_size=4",))[0].to_json()["max_batch_size"] == [4]
    assert asked((), True, pin=("max_batch_size=16",))[0].to_json()["max_batch_size"] == [16]
    for knobs in ((), ("instances=1:2",)):
        with pytest.raises(ValueError, match=r"stays at 8 or above: .*; --pin sets a smaller one"):
            asked(knobs, True, pin=("max_batch_size=4",))


def test_a_resumed_run_has_the_grid_it_had_whatever_is_in_force_now() -> None:
    grid = ("instances=1", "max_batch_size=2,4,8,16")
    space, _ = asked(grid, start={"instances": 1, "max_batch_size": 2}, resume=Path("runs/today"))
    assert space.to_json()["max_batch_size"] == [2, 4, 8, 16]
    with pytest.raises(ValueError, match="the run in runs/today was to try smaller ones: begin another"):
        asked(grid, start={"instances": 1, "max_batch_size": 4}, resume=Path("runs/today"))


def test_where_the_batch_size_is_no_knob_it_is_left_to_be_refused_as_such() -> None:
    without = {"instances": 1}
    space, said = asked(("max_batch_size=1,2",), found=without, start=without)
    assert (space.to_json(), said) == ({"max_batch_size": [1, 2]}, "")
