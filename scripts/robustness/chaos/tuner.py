"""rrl-tune killed in the middle of its run: the next start must leave the target as found or better."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from rrl.journal import read, read_ending
from rrl.views.summary import summarise
from scripts.robustness.chaos.changes import AT_REST, ChaosChanges
from scripts.robustness.chaos.checked_model import NAME
from scripts.robustness.chaos.load import ChaosTally
from scripts.robustness.chaos.server import ChaosServer
from scripts.robustness.figures import CHECKOUT
from serving_adapter import model_configuration

GRID = "instances=1,2,3,max_batch_size=1,4,8"
QUICK = ("--interval-s", "0.5", "--settle-s", "0.1", "--knobs", GRID, "--agent", "random")
START_PATIENCE_S, RUN_PATIENCE_S = 60.0, 180.0
MOST_LINES = 9  # of its journal when it is killed; the first few are of the start
MEAN_LIFE_S = 0.3  # after that line
MEAN_STOP_S = 0.7
PAUSE_S = 0.1


class TunerEpisodes:
    """Runs of rrl-tune, one after the other; each is killed, and the next one puts things right."""

    def __init__(
        self, server: ChaosServer, stub: Any, changes: ChaosChanges, tally: ChaosTally, draw: random.Random
    ) -> None:
        self._server, self._stub, self._changes, self._tally, self._draw = server, stub, changes, tally, draw
        self.dealt: Counter[str] = Counter()
        self.left_as_found = self.left_better = 0

    async def episode(self) -> None:
        """One run that is killed, and one that follows it to its end."""
        while not await self._changes.put(AT_REST | {"instances": self._draw.randint(1, 3)}):
            await asyncio.sleep(PAUSE_S)
        found = await self._in_force()
        number = sum(self.dealt.values())
        killed, next_one = (self._server.folder / f"{name}-{number}" for name in ("killed", "next"))
        process = await self._start(killed, "--intervals", "500")
        lines = self._draw.randint(1, MOST_LINES)
        if not await _until(lambda: _lines(killed) >= lines, process, START_PATIENCE_S):
            self._tally.fault("tuner", f"it did not begin (exit code {process.returncode})")
            return
        if self._draw.random() < 0.5:
            await self._until_changed(found, process)
        else:
            await self._live_on(process)
        process.kill()
        await process.wait()
        self.dealt["tuner kill"] += 1
        following = await self._start(next_one, "--intervals", "1", "--validation", "0")
        if not await _until(lambda: False, following, RUN_PATIENCE_S, ends=True):
            following.kill()
            self._tally.fault("tuner", f"the start after a kill has not ended after {RUN_PATIENCE_S:g} s")
        elif following.returncode:
            self._tally.fault("tuner", f"the start after a kill ended with {following.returncode}")
        else:
            await self._check(found, next_one)

    async def _until_changed(self, found: dict[str, int], process: asyncio.subprocess.Process) -> None:
        """Waits for a moment at which a kill surely leaves another configuration in force than was found."""
        until_s = time.monotonic() + START_PATIENCE_S
        while process.returncode is None and time.monotonic() < until_s and await self._in_force() == found:
            await asyncio.sleep(PAUSE_S)

    async def _live_on(self, process: asyncio.subprocess.Process) -> None:
        """Lets it run for a drawn while, in which it may be stopped."""
        await asyncio.sleep(self._draw.expovariate(1 / MEAN_LIFE_S))
        if self._draw.random() < 0.3:
            process.send_signal(signal.SIGSTOP)
            self.dealt["tuner stop"] += 1
            await asyncio.sleep(self._draw.expovariate(1 / MEAN_STOP_S))
            process.send_signal(signal.SIGCONT)

    async def _check(self, found: dict[str, int], folder: Path) -> None:
        header, records = read(folder)
        tuned = header.space.names
        put_back, wanted = ({name: knobs[name] for name in tuned} for knobs in (header.found, found))
        if put_back != wanted:
            self._tally.fault("tuner", f"{wanted} was found, but the start after a kill found {put_back}")
        ending = read_ending(folder)
        told = None if ending is None else {name: ending.kept[name] for name in tuned}
        in_force = await self._in_force()
        left = {name: in_force[name] for name in tuned}
        if left != told:
            self._tally.fault("tuner", f"it tells that it left {told}, but in force is {left}")
        if left == wanted:
            self.left_as_found += 1
        elif left == {name: summarise(header, records).best.configuration[name] for name in tuned}:
            self.left_better += 1
        else:
            self._tally.fault("tuner", f"{wanted} was found, and {left}, which is not the best, was left")

    async def _start(self, out: Path, *arguments: str) -> asyncio.subprocess.Process:
        with (self._server.folder / "tuner.log").open("a") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "rrl.command_line", "--target", self._server.address),
                *("--out", str(out), *QUICK, *arguments),
                env=os.environ
                | {"PYTHONPATH": str(CHECKOUT), "XDG_STATE_HOME": str(self._server.folder / "state")},
                stdout=log,
                stderr=log,
            )

    async def _in_force(self) -> dict[str, int]:
        while True:
            try:
                told = await self._stub.ModelConfig(pb.ModelConfigRequest(name=NAME), timeout=60)
                return model_configuration.knob_values(told.config)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(PAUSE_S)


def _lines(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


async def _until(
    holds: Callable[[], bool], process: asyncio.subprocess.Process, patience_s: float, ends: bool = False
) -> bool:
    """Waits until something holds of a process, or (`ends`) until it has ended; False if it never did."""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        if process.returncode is not None:
            return ends
        if holds():
            return True
        await asyncio.sleep(PAUSE_S)
    return False
