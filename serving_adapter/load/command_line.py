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
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
from serving_adapter.options import fail, in_a_sentence, parse, printable
from serving_adapter.standard_streams import go_nowhere, say
from serving_adapter.stop_signal import ENDING_AT_ONCE
from serving_adapter.target import TargetError

INTERRUPTED = 130  # the exit code


def main(argv: list[str] | None = None) -> None:
    options = parse(LoadOptions, argv)
    if options.arrivals != RECORDED and options.rate is None:
        options = dataclasses.replace(options, rate=DEFAULT_RATE_PER_S)
    if options.find_capacity is not None:
        raise SystemExit(_found(options))
    levels = options.concurrencies()
    raise SystemExit(_swept(options, levels) if len(levels) > 1 else _sent(options).code)


def _swept(options: LoadOptions, levels: list[int]) -> int:
    """Sends one level after the other. Returns the exit code.

    A signal ends all of it. The table has the levels that were sent to their end.
    """
    reports: dict[int, LoadReport] = {}
    for level in levels:
        out = None if options.out is None else options.out / f"concurrency-{level}"
        sent = _sent(dataclasses.replace(options, concurrency=level, out=out))
        if sent.report is not None and not sent.is_stopped:
            reports[level] = sent.report
        if sent.code or sent.is_stopped:
            break
    levels_table.show(reports)
    if options.out is not None:
        levels_table.write(options.out, reports)
    return sent.code


class SentLoad(NamedTuple):
    report: LoadReport | None  # None if stopped before the server was ready
    code: int  # the exit code
    is_stopped: bool  # by a signal


def _sent(options: LoadOptions) -> SentLoad:
    try:
        arrivals = _arrivals(options)
        if isinstance(arrivals, TimestampTrace) and arrivals.note:
            say(arrivals.note)
        trace_sizes = arrivals.sizes if isinstance(arrivals, TimestampTrace) else None
        sizes = make_sizes(options.sizes, trace_sizes)
        with ExitStack() as stack:
            files = RowFiles(options.out)
            stack.callback(files.close)
            on_second = _seconds_sink(options, stack, files)
            on_request = _requests_sink(options, files)
            runner = stack.enter_context(asyncio.Runner(loop_factory=_punctual_loop))
            running = _run(options, arrivals, sizes, on_second, on_request)
            with closing(running):  # Ctrl-C may come before it is begun
                report, signal_number = runner.run(running)
    except (ValueError, TargetError) as error:
        fail(str(error))
    except KeyboardInterrupt:  # a second SIGINT, or one before the loop ran
        raise SystemExit(INTERRUPTED) from None
    if report is not None:
        _publish(options, report, files)
    is_stopped = signal_number is not None
    if files.trouble:
        print(printable(files.trouble), file=sys.stderr)
        return SentLoad(report, 1, is_stopped)
    return SentLoad(report, INTERRUPTED if signal_number == signal.SIGINT else 0, is_stopped)


def _found(options: LoadOptions) -> int:
    """Finds the capacity. Returns the exit code."""
    try:
        sizes = make_sizes(options.sizes)
        with asyncio.Runner(loop_factory=_punctual_loop) as runner:
            running = _find(options, sizes)
            with closing(running):
                signal_number = runner.run(running)
    except (ValueError, TargetError, OSError) as error:
        fail(in_a_sentence(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return INTERRUPTED if signal_number == signal.SIGINT else 0


async def _find(options: LoadOptions, sizes: Sizes) -> int | None:
    """Searches, and returns the signal that ended the search, if any."""
    stop, signals = _stop_on_signals()
    async with ready(options, sizes, stop) as server:
        if server is not None:
            say(
                f"sending to {server.model} on {options.target}: searches the highest {options.find_capacity}"
            )
            await capacity_run.search(options, server, sizes, stop)
    return signals[0] if signals else None


async def _run(
    options: LoadOptions,
    arrivals: Arrivals,
    sizes: Sizes,
    on_second: Callable[[SecondRow], None],
    on_request: Callable[[RequestRow], None],
) -> tuple[LoadReport | None, int | None]:
    """The report (None if stopped before the server was ready) and the signal that ended the run, if any."""
    stop, signals = _stop_on_signals()
    async with ready(options, sizes, stop) as server:
        if server is None:
            return None, signals[0]
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
        return report, signals[0] if signals else None


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


def _stop_on_signals() -> tuple[asyncio.Event, list[int]]:
    """An event that the first signal sets, and the signals; the same one again ends the process.

    Another signal changes nothing more. A terminal that is closed takes no more text, and the report is
    written to its files.
    """
    stop, received = asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()
    terminals = [each.fileno() for each in (sys.stdout, sys.stderr) if each.isatty()]  # a closed one says no

    def handle(number: int) -> None:
        received.append(number)
        stop.set()
        if number in ENDING_AT_ONCE:
            loop.remove_signal_handler(number)
        else:
            go_nowhere(terminals)

    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as by `nohup`
    for each in ENDING_AT_ONCE if is_ignored else (*ENDING_AT_ONCE, signal.SIGHUP):
        loop.add_signal_handler(each, handle, each)
    return stop, received


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
