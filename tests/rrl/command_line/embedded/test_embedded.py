"""The embedded server and load: whichever of them dies is started again, and the run goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from envs.live import LiveServing
from rrl.command_line.embedded.child_process import FIRST_WAIT_S, MAX_WAIT_S, STEADY_S, ChildProcess
from rrl.command_line.embedded.embedded import Embedded, EmbeddedFailed
from rrl.command_line.embedded.embedded_settings import EmbeddedSettings
from rrl.command_line.embedded.embedded_target import EmbeddedTarget
from rrl.measurement import Measurement
from serving_adapter.target import TargetLost
from tests.support.waiting import until

OTHER = {"instances": 2}


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with closing(Embedded(tmp_path, EmbeddedSettings("noop", rate_per_s=50.0))) as embedded:
        embedded.start_server()
        embedded.start_load()
        yield embedded


def _kill(process: ChildProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process.status is not None)


def test_a_dead_load_and_a_dead_server_leave_one_gap_each(embedded: Embedded) -> None:
    notices: list[str] = []
    embedded.notice = notices.append
    with closing(EmbeddedTarget(embedded)) as target:
        target.connect()
        env = LiveServing(target, "instances=1:2", interval_s=0.6, settle_s=0.1)
        env.reset(seed=0)
        other = env.space.number(OTHER)

        def interval() -> Measurement:
            return env.run(other).measurement

        until(lambda: interval().completions > 0)
        for process in (embedded.load, embedded.server):
            before = embedded.address
            _kill(process)
            assert f"the embedded {process.name} has ended (signal 9" in interval().gap
            assert process.starts == 2
            assert embedded.address == before
            assert env.target.configuration()["instances"] == 2
            until(lambda: not (of := interval()).gap and of.completions > 0)
        assert [text.partition(" has ended (signal 9; see ")[0] for text in notices] == [
            "the embedded load",
            "the embedded server",
        ]
        assert all(text.endswith("; starting it again") for text in notices)
    assert embedded.end_load() is None, "the load that was killed took its count with it"


def test_what_does_not_come_up_again_waits_ever_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rrl.command_line.embedded.embedded.SERVER_MODULE", "this"
    )  # it ends, and serves nothing
    now_s = [0.0]
    embedded = Embedded(tmp_path, EmbeddedSettings("noop"), clock=lambda: now_s[0])
    with closing(embedded):
        with pytest.raises(EmbeddedFailed, match="the embedded server did not start"):
            embedded.start_server()
        waits_s = []
        for _ in range(7):
            waits_s.append(embedded.server.wait_left_s)
            with pytest.raises(TargetLost, match="and starts again in"):
                embedded.revive()
            now_s[0] += waits_s[-1]
            with pytest.raises(TargetLost, match="the embedded server did not start"):
                embedded.revive()
        assert waits_s == [FIRST_WAIT_S * 2**n for n in range(5)] + [MAX_WAIT_S] * 2
        now_s[0] += STEADY_S + 1
        with pytest.raises(TargetLost, match="the embedded server did not start"):
            embedded.revive()
        assert embedded.server.wait_left_s == FIRST_WAIT_S


def test_a_burst_that_cannot_be_sent_says_why(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, EmbeddedSettings())
    embedded.address = "nowhere"
    with pytest.raises(EmbeddedFailed, match="the embedded load broke: --target must be HOST:PORT"):
        embedded.start_load()


def test_a_load_that_cannot_work_ends_the_run_and_is_not_needed_to_put_its_target_in_order(
    tmp_path: Path,
) -> None:
    embedded = Embedded(tmp_path, EmbeddedSettings(rate_per_s=1.0), clock=lambda: 0.0)
    embedded.address = "nowhere"
    embedded.start_load()
    until(lambda: embedded.load.status is not None)
    with pytest.raises(EmbeddedFailed, match="the embedded load broke: --target must be HOST:PORT"):
        embedded.check()
    with pytest.raises(TargetLost, match=r"the embedded load has ended .* and starts again in 1 s"):
        embedded.revive()
    embedded.revive(load=False)
