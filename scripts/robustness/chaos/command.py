"""`python -m scripts.robustness chaos --changes 1000 --kills 1000`: changes and kills under load.

Promised: every request gets its own rows or an error in time. None fails, but where the server itself was
killed, and where three workers ended while they ran it. A change that is told is in force.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.robustness import figures
from scripts.robustness.chaos.blows import Blows
from scripts.robustness.chaos.changes import AT_REST, ChaosChanges
from scripts.robustness.chaos.gate import Gate
from scripts.robustness.chaos.load import ChaosLoad, ChaosTally
from scripts.robustness.chaos.server import ChaosServer
from scripts.robustness.chaos.tuner import TunerEpisodes

KILLS_PER_TUNER_KILL = 50
PROGRESS_S = 30.0
FAULTS = ("lost", "wrong", "failed", "told", "change", "tuner", "end")
"""Counts of these must be zero."""


@dataclass(frozen=True)
class Options:
    """Serves under load while knobs change and processes are killed and stopped at random moments."""

    changes: int = 1000
    """Live changes of all knobs and modes."""
    kills: int = 1000
    """SIGKILL and SIGSTOP of workers, zygotes, store, tuner and server."""
    seed: int = 0
    """Of all that is drawn; the moments at which it meets the processes are the machine's."""
    pace_s: float = 1.5
    """Seconds from one change to the next on average, and from one kill to the next."""
    clients: int = 16
    """Requests that are in flight at most."""
    out: Path | None = None
    """JSON file to which the figures are appended, also where the run is interrupted."""
    keep: Path | None = None
    """Empty or new folder for the logs of server and tuner (default: they are not kept)."""

    def __post_init__(self) -> None:
        for name, low, high in (("changes", 0, 10**6), ("kills", 0, 10**6), ("clients", 1, 500)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"--{name} must be from {low} to {high}, got {getattr(self, name)}")
        if not 0.05 <= self.pace_s <= 3600:
            raise ValueError(f"--pace-s must be from 0.05 to 3600, got {self.pace_s:g}")
        if self.keep is not None and self.keep.exists() and any(self.keep.iterdir()):
            raise ValueError(f"--keep must be an empty or a new folder, but {self.keep} has files")


def run(options: Options) -> bool:
    """Whether everything held."""
    with tempfile.TemporaryDirectory(prefix="rrl-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chaos = Chaos(options, ChaosServer(folder))
        try:
            asyncio.run(chaos.run())
        finally:
            chaos.server.clean_up()
            chaos.tell()
    return not any(chaos.tally.counts[fault] for fault in FAULTS)


class Chaos:
    """One run: server, load, changes, blows and tuners, and what came of them."""

    def __init__(self, options: Options, server: ChaosServer) -> None:
        self.options, self.server, self.tally = options, server, ChaosTally()
        self._began_s = time.monotonic()
        self._gate = Gate()

    async def run(self) -> None:
        options = self.options
        draws = [random.Random(f"{what} of {options.seed}") for what in ("changes", "kills", "tuner")]
        await self.server.start()
        load = ChaosLoad(self.server, self.tally, options.clients, options.seed)
        changes = ChaosChanges(self.server, load.stub, self.tally, draws[0])
        blows = Blows(self.server, draws[1])
        tuners = TunerEpisodes(self.server, load.stub, changes, self.tally, draws[2])
        self._changes, self._blows, self._tuners = changes, blows, tuners
        loading = asyncio.create_task(load.run())
        telling = asyncio.create_task(self._tell_progress())
        episodes = -(-options.kills // KILLS_PER_TUNER_KILL)
        await asyncio.gather(
            self._paced(options.changes, draws[0], changes.change),
            self._paced(options.kills - episodes, draws[1], self._blow),
            self._tuner_episodes(episodes, draws[2]),
        )
        await blows.over()
        await self._rest(changes)
        load.stop()
        await loading
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
        status, left = await asyncio.to_thread(self.server.end)
        if status or left:
            self.tally.fault("end", f"it ended with {status}, and {left} of its processes were left")

    async def _paced(
        self, count: int, draw: random.Random, act: Callable[[], Awaitable[bool | None]]
    ) -> None:
        """Acts so often, with drawn pauses; what did not come about does not count."""
        while count:
            await asyncio.sleep(draw.expovariate(1 / self.options.pace_s))
            async with self._gate.together():
                count -= await act() is not False

    async def _blow(self) -> bool:
        return await self._blows.deal()

    async def _tuner_episodes(self, count: int, draw: random.Random) -> None:
        whole_s = self.options.pace_s * max(self.options.changes, self.options.kills)
        for _ in range(count):
            await asyncio.sleep(draw.uniform(0.5, 1.0) * whole_s / max(1, count))
            async with self._gate.alone():
                await self._blows.over()
                await self._tuners.episode()

    async def _rest(self, changes: ChaosChanges) -> None:
        """The server comes back to a plain configuration and has its workers."""
        for _ in range(20):
            if await changes.put(AT_REST):
                break
            await asyncio.sleep(1.0)
        else:
            self.tally.fault("end", "no change was possible any more")
        for _ in range(60):
            if len(self.server.workers()) == AT_REST["instances"]:
                return
            await asyncio.sleep(0.5)
        self.tally.fault("end", f"there are {len(self.server.workers())} workers instead of 2")

    # --- what is told ----------------------------------------------------------------------------

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            row = self._row()
            print(", ".join(f"{value} {name}" for name, value in row.items()), flush=True)

    def _row(self) -> dict[str, Any]:
        counts, dealt = self.tally.counts, self._blows.dealt + self._tuners.dealt
        return {
            "requests": counts["sent"],
            "changes": self._changes.made.total(),
            "kills": sum(n for what, n in dealt.items() if what.endswith("kill")),
            "stops": sum(n for what, n in dealt.items() if what.endswith("stop")),
            "lost": counts["lost"],
            "wrong": counts["wrong"],
            "failed": counts["failed"],
            "failed: server killed": counts["failed while the server was away"],
            "failed: three workers ended": counts["failed after three workers"],
            "other faults": sum(counts[fault] for fault in ("told", "change", "tuner", "end")),
            "minutes": round((time.monotonic() - self._began_s) / 60, 1),
        }

    def tell(self) -> None:
        """The table; its figures are appended to the file, too."""
        if not hasattr(self, "_changes"):
            return
        row = self._row()
        details = {
            "seed": self.options.seed,
            "changes by mode": dict(self._changes.made),
            "changes refused": self._changes.refused,
            "slowest change s": round(self._changes.slowest_s, 2),
            "dealt": dict(self._blows.dealt + self._tuners.dealt),
            "answers by origin": dict(self.tally.origins),
            "given up": self.tally.counts["given up"],
            "slowest answer s": round(self.tally.slowest_s, 2),
            "server starts": self.server.starts,
            "target left as found": self._tuners.left_as_found,
            "target left better": self._tuners.left_better,
            "faults": self.tally.faults,
        }
        for name, value in details.items():
            if name != "faults":
                print(f"{name}: {value}")
        print(figures.markdown([row]), flush=True)
        if self.options.out is not None:
            figures.append(self.options.out, "chaos", row | details)
