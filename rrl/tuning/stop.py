"""How a person stops a run: Ctrl-C, SIGTERM, a terminal that is closed, or a reader that is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from serving_adapter.standard_streams import go_nowhere

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none
LOOK_UP_S = 0.2  # how often a sleep looks for a signal
STOPPING = "stopping"
PUTTING_BEST_IN_FORCE = "stopping: putting the best configuration known to be safe in force"


class Stopped(Exception):
    """Somebody asked the run to stop."""


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and, unless `nohup` has it ignored, SIGHUP, within the block."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:
        numbers.append(HANG_UP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Output(Console):
    """Where all is printed. Once nobody reads it any more (`| head`), `reader_gone` is called.

    Names and errors come from servers. So no text is markup, and none moves the cursor or colours the screen.
    """

    reader_gone: Callable[[], None] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """What is printed, whichever kind of text it was."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError, ValueError):  # no file of the system's, as in tests
            go_nowhere([self.file.fileno()])
        if self.reader_gone is not None:
            self.reader_gone()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


class Stop:
    """Set by the first SIGINT, SIGTERM or SIGHUP, or by `set`. A SIGINT after it, or a second SIGTERM, is
    Python's own: KeyboardInterrupt.

    A signal may come while the main thread holds any lock, so its handler must wait for none. An `Event` has
    a lock, a `SimpleQueue` has none. A signal may also come while the main thread prints, and printing cannot
    begin anew within itself. So a thread of its own says that the run stops.

    A terminal that hung up takes no more text. What is printed goes nowhere from then on, so that printing
    does not keep the run from putting its target in order.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.says = STOPPING  # what a signal is answered with
        self._stopped = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._say = say
        self._to_say: SimpleQueue[str] = SimpleQueue()  # "": nothing more
        self._terminals: list[int] = []  # of standard output and error, those that are one

    def is_set(self) -> bool:
        return self._stopped

    def sleep(self, duration_s: float) -> None:
        """Sleeps; a stop ends the sleep and raises Stopped.

        Wakes now and then: a signal that another thread received does not wake this one, nor does one that
        came just before it began to wait.
        """
        ends = monotonic() + duration_s
        while not self._stopped and (left_s := ends - monotonic()) > 0:
            with suppress(Empty):
                self._wakes.get(timeout=min(left_s, LOOK_UP_S))
        if self._stopped:
            raise Stopped

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        speaker = Thread(target=self._speak, daemon=True)
        speaker.start()
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        try:
            with handled_by(self._set):
                yield
        finally:
            self._to_say.put("")
            speaker.join()

    def set(self) -> None:
        self._stopped = True
        self._wakes.put(None)

    def _set(self, number: int, frame: object) -> None:
        if number == HANG_UP:
            go_nowhere(self._terminals)
        self.set()
        for again in {signal.SIGINT, number} - {HANG_UP}:
            signal.signal(again, signal.default_int_handler)
        self._to_say.put(self.says)

    def _speak(self) -> None:
        while text := self._to_say.get():
            self._say(text)
