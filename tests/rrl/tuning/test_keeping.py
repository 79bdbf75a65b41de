"""What the tuner leaves however a run ends, and how a resumed one goes on."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.interval import Interval, Watch
from rrl.journal import read, read_ending
from rrl.records import Ending, Record
from rrl.space import Configuration
from rrl.tuning.keeping import Keeping
from rrl.tuning.listener import Change, Listener
from rrl.tuning.restore import RestorePoint
from rrl.tuning.set_by_others import SetByOthers
from rrl.tuning.state_file import ServerIdentity
from tests.support import CHECKOUT
from tests.support.runs.tuned_runs import (
    SETTINGS,
    SPACE,
    Changes,
    StopAfter,
    Told,
    kinds,
    run,
    simulated,
    tuning,
)


def test_the_configuration_left_is_in_force_at_the_end(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    in_force: list[int] = []
    interval = t.env.run

    def noted(number: int, watch: Watch) -> Interval:
        in_force.append(number)
        seen: Interval = interval(number, watch)
        return seen

    t.env.run = noted
    kept = run(t)
    assert in_force[-1] == kept.number


@pytest.mark.parametrize("after", [1, 3, 9, 15])
def test_stopped_at_any_point_it_leaves_the_start_or_better(tmp_path: Path, after: int) -> None:
    stop = StopAfter(after)
    t = tuning(tmp_path, listeners=[stop], stop=stop)
    kept = run(t)
    records = read(tmp_path)[1]
    assert kept.stopped
    assert len(records) == after
    assert t.in_force.number == kept.number
    mean = {
        n: np.mean([r.cost for r in records if r.number == n and r.learned])
        for n in {r.number for r in records}
    }
    assert mean[kept.number] <= mean[t.env.start]


def test_nothing_else_is_put_in_force_once_it_was_stopped_while_the_agent_thought(tmp_path: Path) -> None:
    asked: list[int] = []
    put: list[int] = []
    t = tuning(tmp_path, stop=lambda: bool(asked), put_in_force=put.append)

    def thinks(observation: np.ndarray) -> np.ndarray:
        asked.append(t.env.start)
        return SPACE.action((t.env.start + 1) % len(SPACE))

    t.agent.act = thinks
    changes = Changes()
    t.telling.listeners = [changes]
    kept = run(t)
    assert kept.stopped
    assert (asked, put, changes.seen) == ([t.env.start], [t.env.start], [])


def test_an_agent_that_fails_leaves_the_start_or_better_in_force(tmp_path: Path) -> None:
    t = tuning(tmp_path)

    def broken(observation: np.ndarray) -> np.ndarray:
        if t.finished("tune") == 4:
            raise ZeroDivisionError("the agent's own fault")
        return SPACE.action(t.finished("tune"))

    t.agent.act = broken
    with pytest.raises(ZeroDivisionError):
        run(t)
    assert t.in_force.number == t.guard.to_keep()


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    stop = StopAfter(8)
    run(tuning(tmp_path, listeners=[stop], stop=stop))
    t = tuning(tmp_path, resume=True)
    kept = run(t)
    records = read(tmp_path)[1]
    assert not kept.stopped
    tuned = ["baseline"] * 2 + ["tune"] * 6 + ["baseline"] + ["tune"] * 6
    assert kinds(records)[: len(tuned) + 4] == tuned + ["validation"] * 4
    assert len(t.agent.taught) == sum(r.counted for r in records)


def test_replay_gives_the_guard_the_state_it_had(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated())
    run(t)
    replayed = Guard(t.env.start)
    for record in read(tmp_path)[1]:
        replayed.replay(record)
    assert replayed == t.guard


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.runs.tuned_runs import SPACE, run, simulated, tuning
from rrl.tuning.restore import RestorePoint
from rrl.tuning.listener import Listener

class Kill(Listener):
    count = 0
    def decided(self, kind, number, decision, reason):
        self.count += 1
        if self.count == {at}:
            os.kill(os.getpid(), signal.SIGKILL)

env = simulated()
point = RestorePoint("localhost:8500", {model!r})
point.claim(SPACE.configuration(env.start))
class Safe(Listener):
    def measured(self, record):
        point.safe(SPACE.configuration(t.guard.to_keep()))
t = tuning(Path({folder!r}), env, listeners=[Safe(), Kill()])
run(t)
"""


def test_kill_9_loses_at_most_the_interval_in_flight_and_the_next_start_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = f"m{secrets.token_hex(8)}"
    code = KILLED.format(at=9, folder=str(tmp_path / "run"), model=model)
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ), cwd=CHECKOUT)
    assert killed.returncode == -signal.SIGKILL
    assert len(read(tmp_path / "run")[1]) == 8
    env = simulated()
    point = RestorePoint("localhost:8500", model)
    left = point.to_restore()
    assert left is not None
    assert left.found == SPACE.configuration(env.start)
    assert set(left.best) == set(SPACE.names)
    assert not run(tuning(tmp_path / "run", env, resume=True)).stopped
    assert sum(r.kind == "tune" for r in read(tmp_path / "run")[1]) == 12


@pytest.mark.parametrize("worse", ["", "now", "while it is kept"])
def test_a_resumed_run_that_is_stopped_leaves_what_it_found_unless_that_is_worse(
    tmp_path: Path, worse: str
) -> None:
    """The run before it had shown that to be better, and was not asked again."""
    run(tuning(tmp_path))
    left_before = next(n for n in range(len(SPACE)) if n != simulated().start)
    stop = StopAfter(1)
    t = tuning(
        tmp_path,
        resume=True,
        settings=replace(SETTINGS, intervals=40),
        listeners=[stop],
        stop=stop,
        found=SPACE.configuration(left_before),
    )
    t.guard.keeping = lambda validation=None: ToKeep(t.guard.start, "nothing is known to be better")
    t.guard.choice.is_worse = lambda number: worse == "now"
    t.guard.choice.is_better = lambda number, than: worse == "while it is kept"
    kept = run(t)
    assert kept.stopped
    assert kept.number == (t.guard.start if worse else left_before)


OFF_THE_GRID = {"instances": 3, "intra_op_threads": 1}
"""Found where a knob is pinned to another value, or by a resumed run."""


@pytest.mark.parametrize(("found", "what"), [(None, "what was found"), (OFF_THE_GRID, "the start")])
def test_where_what_is_to_be_left_is_refused_what_was_found_comes_back(
    found: dict[str, int] | None, what: str, tmp_path: Path
) -> None:
    changes = Changes()
    in_force: list[int] = []

    def put_in_force(number: int) -> None:
        if number != t.env.start:
            raise RuntimeError("no memory for another process")
        in_force.append(number)

    t = tuning(tmp_path, listeners=[changes], put_in_force=put_in_force, found=found)
    with pytest.raises(RuntimeError, match="no memory"):
        run(t)
    assert in_force == [t.env.start]
    assert changes.seen[-1].after == SPACE.configuration(t.env.start)
    assert changes.seen[-1].reason == f"restored {what}: no memory for another process"
    ending = read_ending(tmp_path)
    assert ending is not None
    assert ending.kept == SPACE.configuration(t.env.start)
    assert ending.reason == (
        "what was to be left could not be put in force (no memory for another process), "
        f"so {what} was put back"
    )


def test_where_nothing_can_be_put_in_force_the_journal_tells_of_no_end(tmp_path: Path) -> None:
    def put_in_force(number: int) -> None:
        raise RuntimeError("the target is away")

    with pytest.raises(RuntimeError, match="away"):
        run(tuning(tmp_path, put_in_force=put_in_force))
    assert read_ending(tmp_path) is None


@pytest.mark.parametrize("stops", [False, True])
def test_the_journal_ends_with_what_was_left_and_why(tmp_path: Path, stops: bool) -> None:
    stop = StopAfter(4) if stops else StopAfter(10**6)
    kept = run(tuning(tmp_path, stop=stop, listeners=[stop]))
    assert kept.stopped == stops
    assert read_ending(tmp_path) == Ending(SPACE.configuration(kept.number), kept.reason)


def test_what_cannot_be_told_is_put_back_all_the_same(tmp_path: Path) -> None:
    """A full disk, or a terminal that is gone."""

    class DiskFull(Listener):
        def measured(self, record: Record) -> None:
            if record.kind == "tune":
                raise OSError("no space left on device")

        def changed(self, change: Change) -> None:
            if change.decision == "leave":
                raise OSError("no space left on device")

    in_force: list[int] = []
    t = tuning(tmp_path, listeners=[DiskFull()], put_in_force=in_force.append)
    with pytest.raises(OSError, match="no space left"):
        run(t)
    assert in_force == [t.guard.to_keep()]
    ending = read_ending(tmp_path)
    assert ending is not None
    assert ending.kept == SPACE.configuration(in_force[0])


def test_a_resumed_run_that_found_what_its_grid_does_not_hold_says_what_it_restores(tmp_path: Path) -> None:
    run(tuning(tmp_path, stop=(stop := StopAfter(4)), listeners=[stop]))
    changes, stop = Changes(), StopAfter(2)
    t = tuning(tmp_path, resume=True, listeners=[changes, stop], stop=stop, found=OFF_THE_GRID)
    t.agent.act = lambda observation: SPACE.action(5)
    t.guard.keeping = lambda validation=None: ToKeep(t.guard.start, "nothing is known to be better")
    assert run(t).number == t.env.start
    assert changes.seen[-1].reason == "restored the start: interrupted"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "left in force, as found: interrupted"),
        (OFF_THE_GRID, "left in force, as the run started: interrupted"),
    ],
)
def test_a_start_that_stays_is_as_found_only_if_that_was_the_start(
    found: dict[str, int] | None, words: str, tmp_path: Path
) -> None:
    told, stop = Told(), StopAfter(2)
    t = tuning(tmp_path, found=found, listeners=[told, stop], stop=stop)
    t.agent.act = lambda observation: SPACE.action(t.env.start)
    kept = run(t)
    assert kept.number == t.env.start
    assert told.notices[-1] == words


class Meanwhile(Exception):
    """What a target raises where another client has come between."""


class SharedServer:
    """Another client sets `theirs` in the middle of the first change, whose knobs do not come into force."""

    def __init__(self, theirs: Configuration) -> None:
        self.in_force = {**SPACE.configuration(4), "max_batch_size": 8}
        self.theirs = [theirs]
        self.before_change: Callable[[Configuration, Configuration], None] = lambda before, after: None

    def connect(self, control: bool = True, counters: bool = True) -> None:
        pass

    def configuration(self) -> dict[str, int]:
        return dict(self.in_force)

    def apply(self, configuration: Configuration) -> None:
        self.before_change(self.in_force, {**self.in_force, **configuration})
        if self.theirs:
            self.in_force.update(self.theirs.pop())
            raise Meanwhile
        self.in_force.update(configuration)

    def restore(self, found: Configuration, text: str = "") -> None:
        self.apply(found)


def test_what_another_client_sets_in_the_middle_of_the_last_change_stays() -> None:
    keeping = Keeping(SharedServer(SPACE.configuration(5)), SPACE, overtaken=Meanwhile)
    with pytest.raises(SetByOthers) as theirs:
        keeping.put_in_force(6)
    assert theirs.value.configuration == SPACE.configuration(5)
    assert not keeping.done


class Running:
    """A server that has not been started anew, and has no leases."""

    def identity(self) -> ServerIdentity:
        return ServerIdentity("triton 2.51", 7.0)

    def is_still(self, server: ServerIdentity) -> bool:
        return True

    def lease_to(self, owner: str, duration_s: float, anew: bool = False) -> None:
        pass


@pytest.fixture
def claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestorePoint]:
    """By a run that found the configuration 3, and explores 4."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    point = RestorePoint("localhost:8500", f"m{secrets.token_hex(8)}", Running())
    found, explored = ({**SPACE.configuration(number), "max_batch_size": 8} for number in (3, 4))
    point.claim(found)
    point.changing(found, explored)
    yield point
    point.release()


def test_beside_an_untuned_knob_that_another_client_sets_then_the_run_keeps_what_it_chose(
    claimed: RestorePoint,
) -> None:
    server = SharedServer({"max_batch_size": 4})
    server.before_change = claimed.changing
    keeping = Keeping(server, SPACE, claimed, Meanwhile)
    keeping.put_in_force(7)
    assert server.in_force == {**SPACE.configuration(7), "max_batch_size": 4}
    assert keeping.done


def test_a_tuned_knob_that_another_client_sets_then_stays(claimed: RestorePoint) -> None:
    server = SharedServer({"instances": 1, "max_batch_size": 4})
    server.before_change = claimed.changing
    keeping = Keeping(server, SPACE, claimed, Meanwhile)
    with pytest.raises(SetByOthers) as theirs:
        keeping.put_in_force(7)
    assert theirs.value.configuration == {**SPACE.configuration(4), "instances": 1}
    assert not keeping.done
