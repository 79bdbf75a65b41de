"""What a killed run left on a server is put right before the next begins; a start gives signs of life."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from envs.target_claim import restored
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.opening.reach import reach
from rrl.command_line.options.options import TuneOptions
from rrl.tuning.restore import RestorePoint
from rrl.tuning.stop import Stop, Stopped
from rrl.views.run_metrics import RunMetrics
from serving_adapter.target import Overtaken, TargetError


class Refuses:
    """Does not put back what was found."""

    model, server, started_s = "m", "", None

    def __init__(self, error: TargetError) -> None:
        self.error = error

    def configuration(self) -> dict[str, int]:
        return {"instances": 1, "max_batch_size": 4}

    def restore(self, found: dict[str, int], text: str = "") -> None:
        raise self.error


@pytest.fixture
def killed(state_home: Path) -> RestorePoint:
    """Of a run that was killed in a change."""
    killed = RestorePoint("box.invalid:1", "m")
    found, explored = {"instances": 1, "max_batch_size": 8}, {"instances": 1, "max_batch_size": 4}
    killed.claim(found)
    killed.changing(found, explored)
    state = killed.path.read_text()
    killed.release()
    killed.path.write_text(state)
    return killed


def test_what_cannot_be_put_back_is_told_with_what_to_do(killed: RestorePoint) -> None:
    target: Any = Refuses(TargetError("model 'm' has no knob max_batch_size"))
    with pytest.raises(TargetError) as caught:
        restored(RestorePoint("box.invalid:1", "m"), target, Console(quiet=True))
    said = str(caught.value)
    assert "an earlier run did not end cleanly here" in said
    assert "has no knob max_batch_size" in said
    assert f"remove {killed.path}" in said
    assert killed.path.exists()


def test_what_another_client_sets_while_it_is_put_back_stays_and_is_told(killed: RestorePoint) -> None:
    out = io.StringIO()
    target: Any = Refuses(Overtaken("another client set instances=2 while 'm' was configured"))
    assert restored(RestorePoint("box.invalid:1", "m"), target, Console(file=out, width=300)) is None
    assert "did not end cleanly here, and another client set instances=2" in out.getvalue()
    assert "it had found 1 inst. · batch 8" in out.getvalue()
    assert not killed.path.exists()


def test_a_run_that_waits_for_its_own_server_to_start_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, quiet_s = [0.0], []
    metrics = RunMetrics(lambda: now_s[0])

    class Passes(Stop):
        def sleep(self, duration_s: float) -> None:
            quiet_s.append(metrics.quiet_s)
            now_s[0] += duration_s

    def starts_slowly(embedded: Embedded) -> str:
        for _ in range(3):
            embedded._sleep(300.0)
        raise Stopped

    monkeypatch.setattr(Embedded, "start_server", starts_slowly)
    stop = Passes(lambda text: None)
    with pytest.raises(Stopped), reach(TuneOptions(), tmp_path, Console(quiet=True), stop, metrics):
        pass
    assert quiet_s == [0.0] * 3
