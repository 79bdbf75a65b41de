"""How a run reaches the server that it tunes: one that runs already, or one that it starts beside itself.

| | a server that runs already | the embedded server |
|---|---|---|
| its load | what its users send; with --bench, as beside it | started by the run, and over with it |
| after a killed run | what was found is put back | gone, with its server |
| the journal's `load` | unknown | as asked for |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from rrl.command_line.embedded import capacity_search
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.embedded.embedded_settings import embedded_settings
from rrl.command_line.embedded.embedded_target import EmbeddedTarget, EmbeddedWholeTarget, LoadWatch
from rrl.command_line.opening.earlier import Earlier
from rrl.command_line.opening.joint_claim import claim_on, put_right
from rrl.command_line.options.composing import composing_models
from rrl.command_line.options.option_values import concurrency_of, models_of
from rrl.command_line.options.options import TuneOptions
from rrl.guarding.guard import Guard
from rrl.records import Header
from rrl.space import ConfigurationSpace
from rrl.tuning.keeping import BestInStateFile
from rrl.tuning.listener import Change, Listener
from rrl.tuning.restore import TargetClaim
from rrl.tuning.stop import Stop
from rrl.views.run_metrics import RunMetrics
from serving_adapter.control_key import read_control_key
from serving_adapter.target import OpenInferenceTarget, Target, TargetLost, open_target
from serving_adapter.target.error import NotYetThere
from serving_adapter.target.open_inference.joint_target import JointTarget
from serving_adapter.target.open_inference.whole_target import WholeTarget, connected_with_parts

LOOK_AGAIN_S = 2.0  # for a server that a watch waits for


class ChangesBefore(NamedTuple):
    """Changes of the server's configuration, before a run, that no record tells of."""

    put_back: Change | None  # Replaced what a killed run had left in force.
    times_s: list[float]  # Unix times of all changes.


class RunningServer:
    """A server that runs already: what is in force there outlives the run."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.point: TargetClaim | None = claim_on(target)

    def changes_before(self, earlier: Earlier, console: Console, put_back: Change | None) -> ChangesBefore:
        """Puts back what a killed run had found, if `put_back` did not, and counts what was changed."""
        times_s = earlier.unrecorded_changes_s()
        put_back = put_right(self.point, self.target, console) or put_back
        return ChangesBefore(put_back, times_s + ([] if put_back is None else [put_back.at.timestamp()]))

    def under_load(self, header: Header, console: Console) -> Header:
        """Sees to it that requests arrive. Returns the header, which says of the load what is known."""
        return header

    def claim(self, header: Header) -> None:
        """Notes on disk how the server was found: the next run puts right what a killed one left."""
        if self.point is not None:
            interval_s = header.settle_s + header.interval_s
            self.point.claim(header.found, header.found_config_pbtxt or "", interval_s)

    def release(self) -> None:
        """Forgets that: what the run keeps is in force."""
        if self.point is not None:
            self.point.release()

    def listeners(self, view: Listener, guard: Guard, space: ConfigurationSpace) -> list[Listener]:
        """Who looks on because of the kind of server."""
        return [] if self.point is None else [BestInStateFile(self.point, guard, space)]

    def measure_kept(self, header: Header, number: int, console: Console) -> None:
        """Measures what no interval of a run can of the configuration kept in force; its load has ended."""

    def end_load(self) -> int | None:
        """Ends a load that the run started. Returns how many of its requests failed by the clients' count."""
        return None


class BenchedServer(RunningServer):
    """A server that runs already, under a load of the run's own."""

    def __init__(self, target: Target, embedded: Embedded, options: TuneOptions) -> None:
        super().__init__(target)
        self._embedded, self._options = embedded, options

    def under_load(self, header: Header, console: Console) -> Header:
        embedded, options = self._embedded, self._options
        if embedded.settings.note:
            console.print(embedded.settings.note, style="yellow")
        if options.objective == "capacity":
            capacity_search.before_run(embedded, header, options.rate, console)
        embedded.start_load()
        console.print(f"serving {embedded.settings.model} on {embedded.address} {embedded.load_in_words}")
        load: dict[str, Any] = {
            "rate": None if options.concurrency is not None else embedded.rate_per_s,
            "concurrency": concurrency_of(options),
            "model": options.model,
            "arrivals": options.arrivals,
            "sizes": options.sizes,
        }
        if options.bench:
            load |= {"bench": True, "model": header.model}
        if options.input_data is not None:
            load["input_data"] = str(options.input_data.absolute())
        if options.shape:
            load["shape"] = list(options.shape)
        if options.time_unit is not None:
            load["time_unit"] = options.time_unit
        return dataclasses.replace(header, load=load)

    def listeners(self, view: Listener, guard: Guard, space: ConfigurationSpace) -> list[Listener]:
        return [*super().listeners(view, guard, space), LoadWatch(self._embedded, view)]

    def end_load(self) -> int | None:
        return self._embedded.end_load()

    def measure_kept(self, header: Header, number: int, console: Console) -> None:
        if self._options.objective == "capacity" and number != header.space.number(header.start):
            capacity_search.after_run(self._embedded, header, console)


class EmbeddedServer(BenchedServer):
    """The server that a run starts, with its load, and ends: there is nothing to restore."""

    def __init__(self, target: Target, embedded: Embedded, options: TuneOptions) -> None:
        self.target, self.point = target, None
        self._embedded, self._options = embedded, options

    def changes_before(self, earlier: Earlier, console: Console, put_back: Change | None) -> ChangesBefore:
        """None: an earlier run changed another server."""
        return ChangesBefore(None, [])


@contextmanager
def reach(
    options: TuneOptions, folder: Path, console: Console, stop: Stop, metrics: RunMetrics
) -> Iterator[RunningServer]:
    """The server to tune, connected to. An embedded one is started first and ended last.

    `metrics` hear whenever a server that is waited for is not there yet, or has not started yet.
    """

    def sleep(duration_s: float) -> None:
        metrics.goes_on()
        stop.sleep(duration_s)

    if options.target is not None and options.bench:
        with _under_bench(options, options.target, folder, console, sleep) as server:
            yield server
        return
    if options.target is not None:
        with closing(_connected_once_there(options, options.target, console, stop, metrics.away)) as target:
            _print_notes(target, console)
            yield RunningServer(target)
        return
    with closing(Embedded(folder, embedded_settings(options), sleep)) as embedded:
        console.print(f"starting the server and its load (logs in {folder}) ...")
        embedded.start_server()
        with closing(
            EmbeddedTarget(embedded, options.metrics_url, read_control_key(options.control_key_file))
        ) as target:
            target.connect()
            _print_notes(target, console)
            yield EmbeddedServer(target, embedded, options)


@contextmanager
def _under_bench(
    options: TuneOptions,
    address: str,
    folder: Path,
    console: Console,
    sleep: Callable[[float], None],
) -> Iterator[BenchedServer]:
    """The server at an address, under the run's own load."""
    with closing(connected(options, address, options.model, control=True)) as found:
        if not isinstance(found, OpenInferenceTarget):
            raise ValueError(
                f"--bench sends requests of the Open Inference Protocol, which {found.address} does not "
                "take: leave it away, and tune under the load that it has"
            )
        parts = list(found.members) if isinstance(found, WholeTarget) else []
        if parts and concurrency_of(options) is not None:
            raise ValueError(
                f"a closed loop is of one model, and {found.model} is tuned by its parts, "
                f"{', '.join(parts)}: give --rate in place of --concurrency"
            )
        options = dataclasses.replace(options, model=found.model)
    with closing(Embedded(folder, embedded_settings(options), sleep)) as embedded:
        rest = options.metrics_url, read_control_key(options.control_key_file)
        with closing(
            EmbeddedWholeTarget(embedded, parts, *rest) if parts else EmbeddedTarget(embedded, *rest)
        ) as target:
            target.connect()
            _print_notes(target, console)
            yield BenchedServer(target, embedded, options)


def _connected_once_there(
    options: TuneOptions, address: str, console: Console, stop: Stop, away: Callable[[str], None]
) -> Target:
    """A target, connected to. A watch waits until its server answers, also where it is lost again by then.

    NotYetThere or TargetLost for other runs.
    """
    is_told = False
    while True:
        try:
            return connected(options, address, options.model, control=True)
        except (NotYetThere, TargetLost) as error:
            if not options.watches:
                raise
            if not is_told:
                console.print(f"{error}; waiting for it", style="yellow", markup=False)
            is_told = True
            away(str(error))
            stop.sleep(LOOK_AGAIN_S)


def connected(options: TuneOptions, address: str, model: str | None, control: bool) -> Target:
    """A target, connected to. `control` is True if its configuration is to be changed.

    An ensemble's steps are tuned in its place. With --advise it is observed itself.
    """
    key = read_control_key(options.control_key_file)
    rest = options.metrics_url, key, options.tls_ca
    with ExitStack() as unless_connected:
        if options.jointly:
            target: Target = JointTarget(address, models_of(options), *rest)
        else:
            target = open_target(address, model, *rest)
        unless_connected.callback(target.close)
        if isinstance(target, OpenInferenceTarget) and not (options.jointly or options.advise):
            target = connected_with_parts(
                target,
                composing_models(options.bls_composing_models),
                control,
                lambda whole, parts: WholeTarget(address, whole, parts, *rest),
            )
        else:
            target.connect(control=control)
        unless_connected.pop_all()
    return target


def _print_notes(target: Target, console: Console) -> None:
    for note in target.notes:
        console.print(note, style="yellow")
