from __future__ import annotations

import io
import secrets
import signal
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rrl.advice.careful_apply import (
    AGENT,
    SETTINGS,
    AgreedChange,
    ApplyingGuard,
    agreed,
    check_allowed,
    check_can_ask,
    two_configurations,
)
from rrl.command_line.exporting import show_again
from rrl.interval import MeasuredInterval, Watch
from rrl.journal import read
from rrl.measurement import Measurement
from rrl.space import Configuration
from rrl.tuning.change_limits import ChangeLimits, ChangeWindow
from rrl.tuning.ending import Kept
from rrl.tuning.keeping import Keeping
from rrl.tuning.listener import Change
from rrl.tuning.restore import RestorePoint
from tests.rrl.tuning.test_careful_tuning import BAD, BEST, INTERVAL_S, SLOW, START, Timed
from tests.support.runs.guard_told import measured
from tests.support.runs.told_costs import ToldCosts
from tests.support.runs.tuned_runs import SPACE, StopAfter, header


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rrl-tune"


class Server:
    """What was put in force at the end."""

    def __init__(self) -> None:
        self.applied: list[Configuration] = []

    def connect(self, control: bool = True, counters: bool = True) -> None:
        pass

    def configuration(self) -> dict[str, int]:
        return SPACE.configuration(START)

    def apply(self, configuration: Configuration) -> None:
        self.applied.append(configuration)

    def restore(self, found: Configuration, text: str = "") -> None:
        self.apply(found)


def applied(
    folder: Path, number: int, env: Timed | None = None, stop: StopAfter | None = None, **changes: Any
) -> tuple[Kept, Server, str]:
    env, server, out = env or Timed(), Server(), io.StringIO()
    change = AgreedChange(
        env,
        replace(header(env), interval_s=INTERVAL_S),
        SPACE.configuration(number),
        folder,
        RestorePoint("localhost:8500", f"m{secrets.token_hex(8)}"),
        Keeping(server, SPACE),
        **changes,
    )
    kept = change.run(Console(file=out, width=300), stop or (lambda: False))
    return kept, server, out.getvalue()


def changes(folder: Path) -> list[str]:
    """What changed and why, without the times."""
    path = folder / "changes.log"
    return [line.split("  ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []


class CountedDown(Timed):
    def __init__(self, stop: StopAfter) -> None:
        super().__init__()
        self.stop = stop

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.stop.remaining -= 1
        return super()._measurement(number, watch)


class SetByOthersFirst(Timed):
    """Somebody sets this right before the first change, or in the middle of it."""

    def __init__(self, theirs: Configuration, amid_the_change: bool) -> None:
        super().__init__()
        self.theirs, self.amid_the_change = theirs, amid_the_change

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        measured = super()._interval(number, watch)
        if number == START:
            return measured
        nothing = Measurement(4.0, 0, 0, 0, gap="another client changed it", gap_by_others=True)
        changed = self.amid_the_change
        return MeasuredInterval(nothing, changed, set_by_others=self.theirs, gave_way=True)


def test_what_is_better_stays_and_is_one_change(tmp_path: Path, state_home: Path) -> None:
    kept, server, said = applied(tmp_path, BEST)
    assert kept.number == BEST
    assert server.applied == [SPACE.configuration(BEST)]
    about, records = read(tmp_path)
    assert about.agent == AGENT
    assert [r.number for r in records] == [START] * SETTINGS.baseline + [BEST] * SETTINGS.intervals
    (only,) = changes(tmp_path)
    assert only == "intra 1 -> 2  the agent: applies what was recommended, as agreed"
    assert "what was recommended is no worse: its mean cost was 6" in said
    assert not list(state_home.iterdir())


@pytest.mark.parametrize(("number", "made"), [(BEST, 1), (SLOW, 2), (BAD, 2)])
def test_it_waits_for_no_hour_to_pass_and_its_changes_count_for_the_next_model(
    tmp_path: Path, number: int, made: int
) -> None:
    limits = ChangeLimits(2)
    applied(tmp_path, number, limits=limits)
    assert {r.kind for r in read(tmp_path)[1]} == {"baseline", "tune"}
    assert len(limits._changed_at_s) == made


@pytest.mark.parametrize(("amid_the_change", "made"), [(False, 0), (True, 1)])
def test_a_change_that_gave_way_to_somebody_elses_counts_only_if_it_was_begun(
    tmp_path: Path, amid_the_change: bool, made: int
) -> None:
    limits = ChangeLimits(2)
    theirs = {"instances": 5, "intra_op_threads": 1}  # off the grid, so the run ends
    kept, server, _ = applied(tmp_path, BEST, SetByOthersFirst(theirs, amid_the_change), limits=limits)
    assert not kept.known
    assert not server.applied
    assert len(limits._changed_at_s) == made


def test_what_was_put_back_after_a_killed_run_counts_as_a_change(tmp_path: Path) -> None:
    limits, start = ChangeLimits(3), SPACE.configuration(START)
    restored = Change(datetime.now(), SPACE.configuration(SLOW), start, "restore", "restored what was found")
    applied(tmp_path, BEST, limits=limits, restored=restored)
    assert len(limits._changed_at_s) == 2


def test_where_the_window_has_closed_meanwhile_nothing_is_changed(tmp_path: Path) -> None:
    opens, closes = (f"{(datetime.now().hour + hours) % 24:02}:00" for hours in (2, 3))
    limits = ChangeLimits(windows=ChangeWindow.parse([f"{opens}-{closes}"]))
    stop = StopAfter(8)
    kept, _, _ = applied(tmp_path, BEST, CountedDown(stop), stop, limits=limits)
    assert kept.number == START
    assert {r.number for r in read(tmp_path)[1]} == {START}
    assert not changes(tmp_path)


def test_a_change_that_was_agreed_to_is_no_run_to_export(tmp_path: Path) -> None:
    applied(tmp_path, BEST)
    with pytest.raises(ValueError, match="holds one change that --apply-after-advise made"):
        show_again(tmp_path, Console(quiet=True))


def test_what_is_worse_is_put_back(tmp_path: Path) -> None:
    kept, server, said = applied(tmp_path, SLOW)
    assert kept.number == START
    assert server.applied == [SPACE.configuration(START)]
    assert len(changes(tmp_path)) == 2
    assert "restored what was found: what was recommended is worse" in changes(tmp_path)[-1]
    assert "what was recommended is worse" in said


def test_what_the_guard_rolls_back_is_not_tried_a_second_time(tmp_path: Path) -> None:
    kept, _, _ = applied(tmp_path, BAD)
    assert kept.number == START
    numbers = [r.number for r in read(tmp_path)[1]]
    assert numbers.count(BAD) == 1
    assert len(changes(tmp_path)) == 2
    assert "the guard rolled back: mean latency of " in changes(tmp_path)[-1]


def test_interrupted_it_keeps_what_was_applied_only_if_it_is_known_to_be_no_worse(tmp_path: Path) -> None:
    for intervals, left in ((2, START), (5, BEST)):
        stop = StopAfter(intervals)
        kept, server, _ = applied(tmp_path / str(intervals), BEST, CountedDown(stop), stop)
        assert kept.stopped
        assert kept.number == left
        assert server.applied == [SPACE.configuration(left)]


def test_what_a_killed_run_left_is_in_the_log_too(tmp_path: Path) -> None:
    before = SPACE.configuration(SLOW)
    restored = Change(
        datetime.now(), before, SPACE.configuration(START), "restore", "restored what was found"
    )
    applied(tmp_path, BEST, restored=restored)
    assert changes(tmp_path)[0].endswith("restored what was found")


def test_what_fails_before_the_first_interval_leaves_no_claim(tmp_path: Path, state_home: Path) -> None:
    (tmp_path / "changes.log").mkdir()
    found = SPACE.configuration(START)
    restored = Change(datetime.now(), SPACE.configuration(SLOW), found, "restore", "restored what was found")
    with pytest.raises(OSError, match=r"changes\.log"):
        applied(tmp_path, BEST, restored=restored)
    assert not list(state_home.iterdir())


# asking


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_there_is_no_terminal_it_refuses() -> None:
    check_can_ask(Terminal())
    with pytest.raises(ValueError, match="there is none here"):
        check_can_ask(io.StringIO())


@pytest.mark.parametrize(
    ("answer", "yes"),
    [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("yep\n", False), ("", False)],
)
def test_only_a_yes_is_a_yes(answer: str, yes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    out = io.StringIO()
    assert agreed(Console(file=out)) is yes
    assert "[y/N]" in out.getvalue()


def test_outside_the_change_window_nothing_is_asked_for() -> None:
    limits = ChangeLimits(windows=ChangeWindow.parse(["22:00-23:00"]))
    check_allowed(limits, 5.0, lambda: datetime(2026, 11, 23, 22, 30).timestamp())
    for hour, minute in ((12, 0), (22, 59)):
        with pytest.raises(ValueError, match="nothing was applied, no change is allowed now: "):
            check_allowed(limits, 5.0, datetime(2026, 11, 23, hour, minute).timestamp)


def test_the_grid_of_a_change_holds_both_configurations_and_no_more() -> None:
    space = two_configurations(
        {"instances": 4, "max_batch_size": 8, "other": 1}, {"instances": 2, "max_batch_size": 8}
    )
    assert space.to_json() == {"instances": [2, 4], "max_batch_size": [8]}
    assert np.all(space.values == [[2, 8], [4, 8]])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_question(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    before = signal.signal(number, lambda *_: None)  # as within a run: it would wait on

    def interrupted(prompt: str) -> str:
        signal.raise_signal(number)
        return "y"

    console = Console(file=io.StringIO())
    monkeypatch.setattr(console, "input", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            agreed(console)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(("applied_ms", "kept"), [(80.0, BEST), (120.0, START)])
def test_what_was_applied_is_compared_with_the_start_by_what_either_costs_while_it_is_kept(
    applied_ms: float, kept: int
) -> None:
    """It met a burst, and the start a quiet moment. The load to come is another one still."""
    told = ToldCosts({START: 100.0, BEST: 100.0})
    told.kept_ms = {BEST: applied_ms}
    told.then = 3.0
    guard = ApplyingGuard(START, expectation=told, applied=BEST)
    guard.enter(START)
    guard.judge(START, 30.0, measured(30.0), kind="baseline")
    guard.admit(BEST)
    guard.judge(BEST, 250.0, measured(250.0))
    number, reason = guard.keeping()
    assert number == kept
    assert f"while it is kept its cost is expected to be {applied_ms:.1f}, and 100.0 without it" in reason
