"""A run that fails before its first interval leaves nothing behind on its target, and no claim on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.live import Live

from rrl.command_line.opening import reach
from serving_adapter.target import TunerLease
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
