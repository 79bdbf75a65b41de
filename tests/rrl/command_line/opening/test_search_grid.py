"""The grid that a run searches, within its share of the cores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from rrl.command_line.opening.search_grid import SearchGrid, with_its_share
from rrl.command_line.options.options import TuneOptions
from serving_adapter import resources
from tests.support.runs.fake_target import FakeClock, FakeTarget

FOUND = {"instances": 1, "max_batch_size": 8}


def test_several_models_of_a_machine_that_does_not_tell_its_cores_need_a_budget() -> None:
    target = SimpleNamespace(is_local=False, cores=None, address="box:8001", model="a")
    with pytest.raises(ValueError, match=r"box:8001 does not tell how many cores .* give --cores"):
        with_its_share(
            TuneOptions(target="box:8001", model="a,b"),
            target,  # type: ignore[arg-type]
            FOUND,
            ["b"],
            Console(quiet=True),
        )


def grid_of(cores: int | None, told: int | None = None) -> SearchGrid:
    """The grid within its budget, on a server on this machine."""
    target = FakeTarget(FakeClock())
    target.cores = told
    options = TuneOptions(target="localhost:8001", cores=cores)
    return SearchGrid.of(options, target, Console(quiet=True)).within_budget([], Console(quiet=True))


def test_a_tuner_of_one_core_beside_a_larger_server_goes_by_the_cores_that_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: 1)
    own, given = grid_of(cores=None), grid_of(cores=4)
    assert (own.task().cores, own.header(0).cores, own.space.to_json()["instances"]) == (1, 1, [1, 2])
    assert (given.task().cores, given.header(0).cores, given.options.cores) == (4, 4, 4)
    assert given.space.to_json()["instances"] == [1, 2, 3, 4]
    assert not given.over_budget


def test_a_budget_is_not_taken_for_the_cores_of_a_server_that_tells_them() -> None:
    grid = grid_of(cores=3, told=16)
    assert (grid.task().cores, grid.header(0).cores) == (16, 16)
    assert grid.space.values[sorted(grid.over_budget), 0].tolist() == [4] * 6
    found_beyond = grid_of(cores=1)
    assert (found_beyond.options.cores, found_beyond.task().cores) == (2, 1)
