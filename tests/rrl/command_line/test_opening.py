"""The grid that a run searches, and what a run begins and ends with."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from rrl.command_line.ending import FAILED, INTERRUPTED, ended_early
from rrl.command_line.options import TuneOptions
from rrl.command_line.reach import restored
from rrl.command_line.search_grid import space_of, with_its_share
from rrl.space import ConfigurationSpace
from rrl.tuning.restore import RestorePoint
from serving_adapter.target import NotPutBack, TargetError, TargetLost

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
) -> tuple[ConfigurationSpace, str]:
    target = SimpleNamespace(is_local=True, requests_hold_several_items=lambda: several_items)
    said = io.StringIO()
    options = TuneOptions(target="localhost:8001", knobs=knobs, resume=resume)
    space = space_of(options, target, found, start, Console(file=said, width=300))  # type: ignore[arg-type]
    return space, said.getvalue()


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


def test_what_cannot_be_put_back_is_told_with_what_to_do(state_home: Path) -> None:
    class Refuses:
        model = "m"

        def configuration(self) -> dict[str, int]:
            return {"instances": 1}

        def apply(self, configuration: dict[str, int]) -> None:
            raise TargetError("model 'm' has no knob max_batch_size")

    killed = RestorePoint("box:1", "m")
    killed.claim(FOUND)
    state = json.loads(killed.path.read_text())
    killed.path.write_text(json.dumps(state | {"process_started_s": 1.0}))
    with pytest.raises(TargetError) as caught:
        restored(RestorePoint("box:1", "m"), Refuses(), Console(quiet=True))  # type: ignore[arg-type]
    said = str(caught.value)
    assert "an earlier rrl-tune was killed here" in said
    assert "has no knob max_batch_size" in said
    assert f"remove {killed.path}" in said
    assert killed.path.exists()


def test_several_models_of_a_machine_that_does_not_tell_its_cores_need_a_budget() -> None:
    target = SimpleNamespace(is_local=False, is_rrl_serve=False, address="box:8001", model="a")
    with pytest.raises(ValueError, match=r"box:8001 does not tell how many cores .* give --cores"):
        with_its_share(
            TuneOptions(target="box:8001", model="a,b"),
            target,
            FOUND,
            ["b"],
            Console(quiet=True),  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("error", "stopped", "left", "code", "says"),
    [
        (
            TargetLost("lost"),
            True,
            False,
            INTERRUPTED,
            "the target is away; the next start restores it (lost)\n",
        ),
        (TargetError("refused"), True, True, INTERRUPTED, "the run ended: refused\n"),
        (TargetError("refused"), False, True, FAILED, "the run ended: refused\n"),
        (NotPutBack("broken"), True, False, INTERRUPTED, "configuration back, once the model is loaded\n"),
    ],
)
def test_an_early_end_says_what_is_so(
    error: TargetError, stopped: bool, left: bool, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keeping, point = SimpleNamespace(done=left), SimpleNamespace()
    assert ended_early(point, keeping, error, stopped) == code  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.endswith(says)
    assert ("away" in said) == ("away" in says)
