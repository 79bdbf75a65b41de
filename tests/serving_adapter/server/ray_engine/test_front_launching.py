"""The process that starts the other fronts is started again, whatever became of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving_adapter import own_process
from serving_adapter.server.ray_engine import front_launching
from serving_adapter.server.ray_engine.front_launching import FrontsOnNodes
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.parallelism import Parallelism
from tests.support.waiting import eventually

LAUNCHER = """
import socket, sys
from pathlib import Path

_, heard, stays, _, control, *_ = sys.argv
control = socket.socket(fileno=int(control))
control.send(b'{"host": "127.0.0.1", "cpus": [2.0, 1.0]}')
order = control.recv(1 << 17)
if stays == "stays":
    Path(heard).write_bytes(order)
    while control.recv(1 << 17):
        pass
"""
"""What stands in for one of a cluster of 3 CPUs: it ends with its first order, or stays."""
NO_PROGRAM = ("/no/such/program",)


def launched_by(monkeypatch: pytest.MonkeyPatch, *commands: Sequence[str]) -> None:
    """One command after the other, each with the arguments of a launcher."""
    left = iter(commands)
    monkeypatch.setattr(own_process, "command", lambda _, *arguments: [*next(left), *arguments])
    monkeypatch.setattr(front_launching, "LAUNCH_AGAIN_S", 0.01)


def two_fronts(instances: int) -> FrontsOnNodes:
    return FrontsOnNodes("127.0.0.1:1", 2, Parallelism(instances))


def test_one_that_ends_and_cannot_be_started_at_once_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    launcher = (sys.executable, "-c", LAUNCHER, str(heard))
    launched_by(monkeypatch, (*launcher, "ends"), NO_PROGRAM, (*launcher, "stays"))

    async def within() -> None:
        fronts = two_fronts(instances=3)
        assert await fronts.open() == "127.0.0.1"
        fronts.start(["an order"])
        await eventually(lambda: heard.exists() and b"an order" in heard.read_bytes())
        fronts.start_no_more()
        await fronts.close()

    asyncio.run(within())


def test_where_it_cannot_be_started_at_first_the_server_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    launched_by(monkeypatch, NO_PROGRAM)
    said = r"the process that starts other fronts cannot run \(No such file or directory\)"

    async def within() -> None:
        fronts = two_fronts(instances=3)
        with pytest.raises(ModelFailed, match=said):
            await fronts.open()
        await fronts.close()

    asyncio.run(within())


def test_no_front_is_started_where_the_instances_of_all_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    launched_by(monkeypatch, (sys.executable, "-c", LAUNCHER, str(heard), "stays"))

    async def within() -> None:
        fronts = two_fronts(instances=4)
        with pytest.raises(ModelFailed, match="has 3 CPUs on 2 nodes, and 4 instances need one each"):
            await fronts.open()
        await fronts.close()

    asyncio.run(within())
    assert not heard.read_bytes()  # it has ended with no order
