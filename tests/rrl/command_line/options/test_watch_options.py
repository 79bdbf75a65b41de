"""A watch needs a server to keep right; started again, it goes on with the run in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.watch_options import WatchOptions, going_on
from rrl.journal import FILE_NAME


def test_a_watch_goes_on_with_its_folder_whatever_its_agent_started_from(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = WatchOptions(target="localhost:8001", out=out, agent_from=tmp_path / "trained")
    assert going_on(options) == options
    out.mkdir()
    (out / FILE_NAME).write_text("the header\n")
    again = going_on(options)
    assert (again.out, again.resume, again.agent_from) == (None, out, None)
    assert going_on(again) == again


def test_a_watch_without_a_target_is_refused_unless_a_journal_tells_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match=r"no server is named .* give --target HOST:PORT, or target in"):
        WatchOptions(out=run)
    run.mkdir()
    (run / FILE_NAME).write_text("the header\n")
    assert going_on(WatchOptions(out=run)).resume == run
    assert WatchOptions(resume=run).target is None
    assert WatchOptions(export=run).target is None


LEFT_TO_A_JOURNAL = [
    ({"agent": "serf"}, "give --machine FILE"),
    ({"knobs": ("replicas=1,2", "own_knob=1,2")}, "--knobs: no server has a knob own_knob"),
    ({"forbid": ("own_knob",)}, "--forbid: no server has a knob own_knob"),
    ({"pin": ("own_knob=1",)}, "--pin: no server has a knob own_knob"),
    ({"settle_s": 6.0}, "--interval-s must be above --settle-s"),
    ({"jointly": True}, "--jointly tunes several models"),
]


@pytest.mark.parametrize(("given", "refusal"), LEFT_TO_A_JOURNAL)
def test_what_a_watch_leaves_to_its_journal_is_not_missed(
    tmp_path: Path, given: dict[str, Any], refusal: str
) -> None:
    """Machine file, kind of target, interval and models are then the journal's."""
    run = tmp_path / "run"
    with pytest.raises(ValueError, match=refusal):
        WatchOptions(target="localhost:8001", out=run, **given)
    run.mkdir()
    (run / FILE_NAME).write_text("the header\n")
    assert going_on(WatchOptions(out=run, **given)).resume == run
    with pytest.raises(ValueError, match=refusal):  # It begins anew, whatever its folder holds.
        TuneOptions(target="localhost:8001", out=run, **given)
