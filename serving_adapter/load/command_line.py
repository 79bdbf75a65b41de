"""`rrl-load`: sends a load to a server and reports the latency its users would see.

| asked for | what is sent |
|---|---|
| nothing else | an open loop: requests leave when an arrival process says |
| `--concurrency` | a closed loop, or several one after the other |
| `--find-capacity` | windows at several loads, until the highest is known that keeps a limit |
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import selectors
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing
from types import FrameType
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from serving_adapter.flags.parsing import fail, in_a_sentence, parse
from serving_adapter.load import capacity_run, levels_table
from serving_adapter.load.arrivals import (
    DEFAULT_RATE_PER_S,
    RECORDED,
    Arrivals,
    TimestampTrace,
    make_arrivals,
)
from serving_adapter.load.generator import LoadGenerator
from serving_adapter.load.options import LoadOptions
from serving_adapter.load.readiness import ready
from serving_adapter.load.report import LoadReport, RequestRow, SecondRow
from serving_adapter.load.row_files import RowFiles
from serving_adapter.load.sizes import Sizes, make_sizes
from serving_adapter.sentences import printable
from serving_adapter.standard_streams import go_nowhere, say
from serving_adapter.stop_signal import ENDING_AT_ONCE, StopSignal
from serving_adapter.target import TargetError

FAILED, INTERRUPTED = 1, 130  # exit codes


def main(argv: list[str] | None = None) -> None:
    options = parse(LoadOptions, argv)
    if options.arrivals != RECORDED and options.rate is None:
        options = dataclasses.replace(options, rate=DEFAULT_RATE_PER_S)
    raise SystemExit(_exit_code(options))


def _exit_code(options: LoadOptions) -> int:
    """Does the work. It hears of signals until its end, so that what was measured is kept and said."""
    try:
        work = _work(options)
        # Ctrl-C may come before it is begun; what was begun, the runner ends first.
        with closing(work), asyncio.Runner(loop_factory=_punctual_loop) as runner:
            return runner.run(work)
    except (ValueError, TargetError, OSError) as error:
        fail(in_a_sentence(error))
    except KeyboardInterrupt:  # a second SIGINT, or one before the loop ran
        return INTERRUPTED


def _work(options: LoadOptions) -> Coroutine[Any, Any, int]:
    """What to do. Arrivals and sizes are read here: a signal ends that at once, as nothing is measured."""
    if options.find_capacity is not None:
        return _find(options, make_sizes(options.sizes))
    arrivals = _arrivals(options)
    if isinstance(arrivals, TimestampTrace) and arrivals.note:
        say(arrivals.note)
    trace_sizes = arrivals.sizes if isinstance(arrivals, TimestampTrace) else None
    sizes = make_sizes(options.sizes, trace_sizes)
    levels = options.concurrencies()
    if len(levels) > 1:
        return _sweep(options, levels, arrivals, sizes)
    return _send(options, arrivals, sizes)


async def _send(options: LoadOptions, arrivals: Arrivals, sizes: Sizes) -> int:
    """Sends one load. Returns the exit code."""
    stop = _stop_on_signals()
    sent = await _sent(options, arrivals, sizes, stop)
    return FAILED if sent.lacks_rows else _code_after(stop)


async def _sweep(options: LoadOptions, levels: list[int], arrivals: Arrivals, sizes: Sizes) -> int:
    """Sends one level after the other. Returns the exit code.

    A signal ends all of it. The table has the levels that were sent to their end.
    """
    stop, lacks_rows = _stop_on_signals(), False
    reports: dict[int, LoadReport] = {}
    for level in levels:
        if stop.signal_number or lacks_rows:
            break
        out = None if options.out is None else options.out / f"concurrency-{level}"
        at_level = dataclasses.replace(options, concurrency=level, out=out)
        sent = await _sent(at_level, arrivals, sizes, stop)
        if sent.report is not None and sent.is_whole:
            reports[level] = sent.report
        lacks_rows = sent.lacks_rows
    levels_table.show(reports)
    if options.out is not None:
        levels_table.write(options.out, reports)
    return FAILED if lacks_rows else _code_after(stop)


async def _find(options: LoadOptions, sizes: Sizes) -> int:
    """Searches the capacity. Returns the exit code."""
    stop = _stop_on_signals()
    async with ready(options, sizes, stop) as server:
        if server is not None:
            say(
                f"sending to {server.model} on {options.target}: searches the highest {options.find_capacity}"
            )
            await capacity_run.search(options, server, sizes, stop)
    return _code_after(stop)


class SentLoad(NamedTuple):
    report: LoadReport | None  # None if stopped before the server was ready
    is_whole: bool  # no signal came before its end
    lacks_rows: bool = False  # its files are not complete


async def _sent(options: LoadOptions, arrivals: Arrivals, sizes: Sizes, stop: StopSignal) -> SentLoad:
    """Sends one load, and says and writes how it went."""
    with ExitStack() as stack:
        files = RowFiles(options.out)
        stack.callback(files.close)
        on_second = _seconds_sink(options, stack, files)
        on_request = _requests_sink(options, files)
        sent = await _run(options, arrivals, sizes, on_second, on_request, stop)
    if sent.report is not None:
        _publish(options, sent.report, files)
    if files.trouble:
        print(printable(files.trouble), file=sys.stderr)
    return sent._replace(lacks_rows=bool(files.trouble))


async def _run(
    options: LoadOptions,
    arrivals: Arrivals,
    sizes: Sizes,
    on_second: Callable[[SecondRow], None],
    on_request: Callable[[RequestRow], None],
    stop: StopSignal,
) -> SentLoad:
    async with ready(options, sizes, stop) as server:
        if server is None:
            return SentLoad(None, is_whole=False)
        levels = options.concurrencies()
        rate_per_s = options.rate or arrivals.mean_rate_per_s
        at = f"{levels[0]} requests at once" if levels else f"{options.arrivals} arrivals at {rate_per_s:g}/s"
        say(f"sending to {server.model} on {options.target}: {at}")
        sender = LoadGenerator(
            server.send,
            server.payloads,
            levels[0] if levels else arrivals,
            sizes,
            options.seed,
            options.duration_s or math.inf,
            on_second,
            on_request,
        )
        report = await sender.run(stop)
        return SentLoad(report, is_whole=not stop.is_set())


def _arrivals(options: LoadOptions) -> Arrivals:
    return make_arrivals(
        options.arrivals,
        options.rate,
        period_s=options.period_s,
        day_s=options.day_s,
        speed_up=options.speed_up,
        offset_s=options.offset_s,
        bin_s=options.bin_s,
        time_unit=options.time_unit,
        recording=options.input_data,
    )


def _punctual_loop() -> asyncio.AbstractEventLoop:
    """An event loop that wakes to the microsecond; the default's epoll rounds waits up to milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def _stop_on_signals() -> StopSignal:
    """What the first signal sets; the same one again ends the process, also where the loop does not go round.

    Its number is there at once, and it is set when the loop goes round, as in what waits for it.
    Another signal changes nothing more. A terminal that is closed takes no more text, and the report is
    written to its files.
    """
    stop, loop = StopSignal(), asyncio.get_running_loop()
    terminals = [each.fileno() for each in (sys.stdout, sys.stderr) if each.isatty()]  # a closed one says no

    def handle(number: int) -> None:
        if number not in ENDING_AT_ONCE:
            go_nowhere(terminals)
        if not stop.is_set():  # The loop hears of a second one as well, before it ends by it.
            stop.set()

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal_number = stop.signal_number or number
        if number in ENDING_AT_ONCE:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as by `nohup`
    for each in ENDING_AT_ONCE if is_ignored else (*ENDING_AT_ONCE, signal.SIGHUP):
        loop.add_signal_handler(each, handle, each)
        signal.signal(each, note)  # The loop hears of it by itself, and puts the default back at its end.
    return stop


def _code_after(stop: StopSignal) -> int:
    return INTERRUPTED if stop.signal_number == signal.SIGINT else 0


def _seconds_sink(options: LoadOptions, stack: ExitStack, files: RowFiles) -> Callable[[SecondRow], None]:
    """What is done with each second: a row in load.csv, a step of the progress bar in a terminal."""
    sinks: list[Callable[[SecondRow], None]] = []
    if options.out is not None:
        write = files.create("load.csv", SecondRow.header(), flushes=True)
        sinks.append(lambda row: write(row.as_csv()))
    if sys.stderr.isatty():
        sinks.append(_progress_sink(options, stack))

    def on_second(row: SecondRow) -> None:
        for sink in sinks:
            sink(row)

    return on_second


def _requests_sink(options: LoadOptions, files: RowFiles) -> Callable[[RequestRow], None]:
    """What is done with each request: an answer is counted, and a row in requests.csv, if asked for."""
    if options.out is None:
        return lambda row: None
    write = files.create("requests.csv", RequestRow.header()) if options.requests else lambda row: None
    count = files.count_answers()

    def on_request(row: RequestRow) -> None:
        if row.status == "OK":
            count(1e-3 * row.latency_ms)
        write(row.as_csv())

    return on_request


def _progress_sink(options: LoadOptions, stack: ExitStack) -> Callable[[SecondRow], None]:
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    progress = stack.enter_context(
        Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2)
    )
    task = progress.add_task("starting", total=options.duration_s or None)

    def on_second(row: SecondRow) -> None:
        latency = (
            "no answers" if row.mean_ms is None else f"mean {row.mean_ms:.1f} ms, p95 {row.p95_ms:.1f} ms"
        )
        progress.update(task, advance=1, description=f"{row.sent}/s, {row.failed} failed, {latency}")

    return on_second


def _publish(options: LoadOptions, report: LoadReport, files: RowFiles) -> None:
    if options.out is not None:
        document = {
            "options": json.loads(json.dumps(dataclasses.asdict(options), default=str)),
            **dataclasses.asdict(report),
        }
        files.write_whole("load.json", json.dumps(document, indent=2) + "\n")
    console = Console()
    with console.capture() as shown:
        console.print(report.as_table())
    say(shown.get().rstrip("\n"))


if __name__ == "__main__":
    main()
