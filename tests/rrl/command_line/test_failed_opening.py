"""A run that fails before its first interval leaves nothing behind on its target, and no claim on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.live import Live

from rrl.command_line.opening import reach
from serving_adapter.target import TargetError, TunerLease
from tests.support.runs.fake_target import FakeClock, FakeTarget
from tests.support.runs.running_command import QUICK, exit_code

OPENS = ("--target", "fake:1", "--agent", "random", *QUICK, "--out", "run")


class Leased(FakeTarget):
    """Tells for how long it is leased to whom."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.leases: list[TunerLease] = []

    def take_lease(self, lease: TunerLease) -> bool:
        self.leases.append(lease)
        return True


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Leased:
    made = Leased()
    monkeypatch.setattr(reach, "open_target", lambda *arguments: made)
    return made


@pytest.fixture
def no_events(tmp_path: Path) -> None:
    """There can be no folder for what TensorBoard reads."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").touch()


@pytest.mark.usefixtures("no_events")
def test_its_claim_ends_with_it(target: Leased, state_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*OPENS) == 2
    assert "cannot read or write run/tensorboard" in capsys.readouterr().err
    assert [lease.duration_s > 0 for lease in target.leases] == [True, False]
    assert len({lease.owner for lease in target.leases}) == 1
    assert not list(state_home.iterdir())
    assert not target.applied
    assert target.closed


@pytest.mark.usefixtures("no_events", "target")
def test_the_terminal_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Live] = []
    begin = Live.start

    def noted(live: Live) -> None:
        started.append(live)
        begin(live)

    monkeypatch.setattr(Live, "start", noted)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert exit_code(*OPENS) == 2
    assert len(started) == 1
    assert not started[0].is_started


def test_a_server_that_is_lost_while_a_run_begins_is_no_wrong_use(
    target: Leased, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service that is not started anew after wrong use is to be started anew after this."""
    monkeypatch.setattr(reach, "_print_notes", lambda *arguments: target.lose(60.0))
    assert exit_code(*OPENS) == 1
    assert "the run ended: the target is lost (connection refused)" in capsys.readouterr().err
    target.lose(-1.0)  # It is back.
    assert exit_code(*OPENS, "--exit-code") == 5


def test_a_watch_waits_for_a_server_that_is_lost_while_it_connects(
    target: Leased, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts: list[object] = []

    def connected(*arguments: object, **options: object) -> Leased:
        attempts.append(arguments)
        if len(attempts) < 3:
            raise target.lost_by
        raise TargetError("it is another server by now")

    monkeypatch.setattr(reach, "connected", connected)
    monkeypatch.setattr(reach, "LOOK_AGAIN_S", 0.0)
    assert exit_code("watch", *OPENS) == 2
    assert len(attempts) == 3
    said = capsys.readouterr()
    assert said.out.count("the target is lost (connection refused); waiting for it") == 1
    assert "it is another server by now" in said.err
