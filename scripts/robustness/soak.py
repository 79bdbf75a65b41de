"""`python -m scripts.robustness soak`: hours of changes, arrivals and journal in one, and what stays held.

A server of two models runs with a model store. On one model the default agent tunes at intervals of 0.12 s,
under arrivals whose day takes as long as the run. The other model is given another configuration as often.
Before and after, the server comes to rest with the same configuration, and is then compared, by the
least of three looks: single ones differ by tens of MiB with the age of the workers. The tuner is compared
with itself after a minute, and its journal by its bytes an interval.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from scripts.robustness import figures
from scripts.robustness.process_usage import HeldByProcesses, family, held
from scripts.robustness.tuner_watch import ENDING_S, MOST_GROWTH_BYTES, MOST_MORE, HeldRow, TunerWatch
from scripts.serving.processes import started, tune_command
from serving_adapter.model_store import Client, StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as store_pb
from serving_adapter.target import OpenInferenceTarget

TUNED, CHANGED = "minilm", "noop"
AT_REST = {"instances": 1, "intra_op_threads": 1, "max_batch_size": 4, "max_queue_delay_us": 0}
STARTING_S = 60.0  # of tuner and load
INTERVAL_S, SETTLE_S = 0.12, 0.02  # a day has 17,280 intervals of 5 s, this hour about as many
RATE = {TUNED: 40, CHANGED: 100}  # requests/s; 100 an hour long are a day's at 4
SAMPLES = 60  # looks at the tuner, in its run
LEAST_LOOK_EVERY_S = 1.0
LOOKS = 3
REST_S = 60.0

MOST_LOG_BYTES_A_CHANGE = 400
LOG_SHOWN = 4000  # characters of what tuner and load said, where something does not hold


@dataclass(frozen=True)
class Options:
    """Runs server, store, tuner and load for long, and says what they hold at the end as at the start."""

    minutes: float = 60.0
    """How long the tuner tunes."""
    warm_up_s: float = 20.0
    """Load and changes before each look at the server."""
    seed: int = 0
    """Of arrivals and changes."""
    out: Path | None = None
    """JSON file that the figures are appended to."""

    def __post_init__(self) -> None:
        if not (0.1 <= self.minutes <= 10_000 and self.warm_up_s >= 1):
            raise ValueError("--minutes must be from 0.1 to 10000, --warm-up-s at least 1")


def run(options: Options) -> bool:
    """Prints a table; True if nothing grew."""
    folder = Path(tempfile.mkdtemp(prefix="rrl-soak-"))
    os.environ["RRL_STORE"] = str(folder / "store")
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        rows, facts = _soak(options, folder)
        if not all(each.holds for each in rows):
            print((folder / "clients.log").read_text(encoding="utf-8")[-LOG_SHOWN:])
    finally:
        _end_store()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{'':38} {'start':>10} {'end':>10} {'at most':>10}")
    for each in rows:
        mark = "" if each.holds else "  GROWS"
        print(f"{each.what:38} {each.start:10.1f} {each.end:10.1f} {each.most:10.1f} {each.unit}{mark}")
    row = _figures(rows, facts)
    print(figures.markdown([row]))
    if options.out is not None:
        figures.append(options.out, "soak", row | {"rows": [each._asdict() for each in rows]})
    return all(each.holds for each in rows)


def _soak(options: Options, folder: Path) -> tuple[list[HeldRow], dict[str, Any]]:
    with _serving(folder) as (server, address):
        soak = _Soak(options, folder, address, server, _store_pid())
        start = soak.held_at_rest()
        shm_start = _shm_bytes()
        log_start = (folder / "serve.log").stat().st_size
        began_s = time.monotonic()
        done = soak.load_and_change(60 * options.minutes, tunes=True)
        minutes = (time.monotonic() - began_s) / 60
        log_bytes = (folder / "serve.log").stat().st_size - log_start
        end = soak.held_at_rest()
        alive = _store_pid() == soak.store
    rows = [row for group in start for row in held_rows(group, start[group], end[group])]
    rows.append(HeldRow("/dev/shm", shm_start / 2**20, _shm_bytes() / 2**20, shm_start / 2**20 + 8, "MiB"))
    rows += done.tuner.rows()
    most_log_kib = 64 + done.changes * MOST_LOG_BYTES_A_CHANGE / 1024
    rows.append(HeldRow("log of the server", 0, log_bytes / 1024, most_log_kib, "KiB"))
    rows.append(HeldRow("failed requests", 0, soak.failed, 0, ""))
    rows.append(HeldRow("store replaced", 0, float(not alive), 0, ""))
    facts = {
        "minutes": round(minutes, 1),
        "changes": done.changes + done.tuner.changes,
        "intervals": done.tuner.intervals,
        "answered": done.answered,
        "journal_MB": round(done.tuner.journal_bytes / 1e6, 1),
    }
    return rows, facts


def held_rows(group: str, start: HeldByProcesses, end: HeldByProcesses) -> Iterator[HeldRow]:
    before, after = start.memory_bytes / 2**20, end.memory_bytes / 2**20
    yield HeldRow(f"memory of the {group}", before, after, before + MOST_GROWTH_BYTES / 2**20, "MiB")
    for name, more in (("descriptors", MOST_MORE), ("threads", MOST_MORE), ("processes", 0)):
        yield HeldRow(
            f"{name} of the {group}",
            getattr(start, name),
            getattr(end, name),
            getattr(start, name) + more,
            "",
        )


# --- the processes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[tuple[int, str]]:
    models = ("--model", TUNED, "--model", CHANGED, "--intra-op-threads", 1, "--max-batch-size", 4)
    command = ("serving_adapter.server.command_line", *models, "--port", 0, "--metrics-port", 0)
    with (folder / "serve.log").open("w") as log, started(*map(str, command), log=log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"on (\S+:\d+), metrics on", line)
        if match is None:
            raise RuntimeError(f"the server did not start: {(folder / 'serve.log').read_text()[-1000:]}")
        yield process.pid, match.group(1)


def _store_pid() -> int:
    with Client(starts_store=False) as client:
        return int(client.call("Stats", store_pb.Empty()).pid)


def _end_store() -> None:
    with contextlib.suppress(StoreError, ProcessLookupError):
        os.kill(_store_pid(), signal.SIGTERM)


def _load(folder: Path, address: str, model: str, seconds: float, seed: int) -> tuple[str, ...]:
    arrivals = (
        ("--arrivals", "wiki", "--day-s", str(seconds)) if model == TUNED else ("--arrivals", "poisson")
    )
    sizes = ("--sizes", "uniform:2:12")
    out = _out_of_load(folder, model)
    shutil.rmtree(out, ignore_errors=True)  # of the load before
    out.mkdir()
    rate = ("--rate", str(RATE[model]), "--duration-s", "0", "--seed", str(seed), "--out", str(out))
    return (
        "serving_adapter.load.command_line",
        "--target",
        address,
        "--model",
        model,
        *arrivals,
        *sizes,
        *rate,
    )


class _Loaded(NamedTuple):
    """What was done under load."""

    changes: int  # of the model that is changed
    failed: int  # requests, as the clients saw them
    answered: int
    tuner: TunerWatch


def _wait_for_load(folder: Path) -> None:
    """Until both have written what they sent in a second."""
    deadline_s = time.monotonic() + STARTING_S
    while not all((_out_of_load(folder, model) / "load.csv").exists() for model in (TUNED, CHANGED)):
        if time.monotonic() > deadline_s:
            raise RuntimeError(
                f"no load within {STARTING_S:g} s: {(folder / 'clients.log').read_text()[-1000:]}"
            )
        time.sleep(0.1)


def _out_of_load(folder: Path, model: str) -> Path:
    return folder / f"load-{model}"


@dataclass
class _Soak:
    """A server under load and changes, and looks at what it holds."""

    options: Options
    folder: Path
    address: str
    server: int  # process id
    store: int
    failed: int = 0  # requests, in all

    def load_and_change(self, seconds: float, tunes: bool = False) -> _Loaded:
        """Load on both models, changes of one, and the tuner on the other, if it tunes."""
        options, watch = self.options, TunerWatch(self.folder / "run")
        with contextlib.ExitStack() as stack:
            log = stack.enter_context((self.folder / "clients.log").open("a"))
            for model in (TUNED, CHANGED):
                command = _load(self.folder, self.address, model, seconds, options.seed)
                stack.enter_context(started(*command, log=log))
            _wait_for_load(self.folder)
            if tunes:
                stack.enter_context(_tuning(options, self.address, watch, log))
            longest_s = seconds + (STARTING_S + ENDING_S) * tunes
            look_every_s = max(LEAST_LOOK_EVERY_S, seconds / SAMPLES)
            changes = _change(self.address, longest_s, look_every_s, options.seed, watch)
            watch.end()
        failed, answered = _failed_and_answered(self.folder)
        self.failed += failed
        return _Loaded(changes, failed, answered, watch)

    def held_at_rest(self) -> Mapping[str, HeldByProcesses]:
        """The least of some looks. Before each, load and changes leave other workers."""
        looks = []
        for _ in range(LOOKS):
            self.load_and_change(self.options.warm_up_s)
            _come_to_rest(self.address)
            front, *workers = family(self.server)
            groups = {"front": [front], "workers": workers, "store": family(self.store)}
            looks.append({group: held(processes) for group, processes in groups.items()})
        return {group: HeldByProcesses.least(look[group] for look in looks) for group in looks[0]}


@contextlib.contextmanager
def _tuning(options: Options, address: str, watch: TunerWatch, log: TextIO) -> Iterator[None]:
    pace = ("--interval-s", INTERVAL_S, "--settle-s", SETTLE_S, "--duration", f"{60 * options.minutes:g}s")
    what = ("--target", address, "--model", TUNED, "--out", watch.folder, "--seed", options.seed)
    knobs = ("--knobs", "instances=1:2,max_batch_size=1,4,8")
    command = tune_command(*what, *pace, *knobs)
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    watch.process = process
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _change(address: str, seconds: float, look_every_s: float, seed: int, watch: TunerWatch) -> int:
    """Puts one configuration after another in force, until the tuner ends; watches it meanwhile."""
    count, end_s, next_look_s = 0, time.monotonic() + seconds, 0.0
    target = OpenInferenceTarget(address, CHANGED)
    target.connect()
    every = itertools.product((1, 2, 3), (1, 2), (1, 4, 16), (0, 500, 2000))
    grid = [dict(zip(AT_REST, values, strict=True)) for values in every]
    try:
        while (now_s := time.monotonic()) < end_s and not watch.is_over:
            if now_s >= next_look_s:
                watch.look()
                next_look_s = now_s + look_every_s
            target.apply(grid[(seed + 7 * count) % len(grid)])
            count += 1
            time.sleep(max(0.0, min(now_s + INTERVAL_S, end_s) - time.monotonic()))
    finally:
        target.close()
    return count


def _come_to_rest(address: str) -> None:
    """Both models with the configuration of rest, and nothing in flight."""
    for model in (TUNED, CHANGED):
        target = OpenInferenceTarget(address, model)
        target.connect()
        try:
            target.apply(AT_REST)
            deadline_s = time.monotonic() + REST_S
            while target.read().backlog and time.monotonic() < deadline_s:
                time.sleep(0.1)
        finally:
            target.close()
    time.sleep(2.0)  # processes that were retired end, connections that were closed are noticed


# --- what is held ------------------------------------------------------------------------------------


def _shm_bytes() -> int:
    ours = [each for each in os.scandir("/dev/shm") if each.name.startswith("rrl")]
    return sum(each.stat().st_size for each in ours if not each.name.startswith("rrl_triton"))


def _failed_and_answered(folder: Path) -> tuple[int, int]:
    """Requests of the last load, as its clients saw them."""
    reports = [json.loads((_out_of_load(folder, m) / "load.json").read_text()) for m in (TUNED, CHANGED)]
    return sum(sum(r["failed"].values()) for r in reports), sum(r["completed"] for r in reports)


def _figures(rows: list[HeldRow], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The run as a row of docs/results/reliability.md."""
    by_name = {row.what: row for row in rows}
    memory = {f"{name} MiB": by_name[f"memory of the {name}"] for name in ("front", "workers", "store")}
    grown = sum(not row.holds for row in rows)
    told = {name: f"{row.start:.0f} to {row.end:.0f}" for name, row in memory.items()}
    return {**facts, **told, "what grows": grown}
