"""How a run reaches the server that it tunes: one that runs already, or one that it starts beside itself.

| | a server that runs already | the embedded server |
|---|---|---|
| its load | what its users send; with --bench, as beside it | started by the run, and over with it |
| after a killed run | what was found is put back | gone, with its server |
| the journal's `load` | unknown | as asked for |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from envs.target_claim import restore_point, restored
from rrl.command_line.earlier import Earlier
from rrl.command_line.embedded import Embedded, EmbeddedSettings, EmbeddedTarget, LoadWatch
from rrl.command_line.options import TuneOptions
from rrl.guarding.guard import Guard
from rrl.records import Header
from rrl.space import ConfigurationSpace
from rrl.tuning.keeping import BestInStateFile
from rrl.tuning.listener import Change, Listener
from rrl.tuning.restore import RestorePoint
from rrl.tuning.stop import Stop
from serving_adapter.control_key import read_control_key
from serving_adapter.load.arrivals import TimestampTrace, make_arrivals
from serving_adapter.load.sizes import make_sizes
from serving_adapter.target import Target


class ChangesBefore(NamedTuple):
    """Changes of the server's configuration, before a run, that no record tells of."""

    put_back: Change | None  # Replaced what a killed run had left in force.
    times_s: list[float]  # Unix times of all changes.


class RunningServer:
    """A server that runs already: what is in force there outlives the run."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.point: RestorePoint | None = restore_point(target)

    def changes_before(self, earlier: Earlier, console: Console, put_back: Change | None) -> ChangesBefore:
        """Puts back what a killed run had found, if `put_back` did not, and counts what was changed."""
        times_s = earlier.unrecorded_changes_s()
        if self.point is not None:
            put_back = restored(self.point, self.target, console) or put_back
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
        embedded.start_load()
        console.print(f"serving {embedded.settings.model} on {embedded.address} at {embedded.rate_per_s:g}/s")
        load: dict[str, Any] = {
            "rate": embedded.rate_per_s,
            "model": options.model,
            "arrivals": options.arrivals,
            "sizes": options.sizes,
        }
        if options.bench:
            load |= {"bench": True, "model": header.model}
        if options.input_data is not None:
            load["input_data"] = str(options.input_data.absolute())
        return dataclasses.replace(header, load=load)

    def listeners(self, view: Listener, guard: Guard, space: ConfigurationSpace) -> list[Listener]:
        return [*super().listeners(view, guard, space), LoadWatch(self._embedded, view)]

    def end_load(self) -> int | None:
        return self._embedded.end_load()


class EmbeddedServer(BenchedServer):
    """The server that a run starts, with its load, and ends: there is nothing to restore."""

    def __init__(self, target: Target, embedded: Embedded, options: TuneOptions) -> None:
        self.target, self.point = target, None
        self._embedded, self._options = embedded, options

    def changes_before(self, earlier: Earlier, console: Console, put_back: Change | None) -> ChangesBefore:
        """None: an earlier run changed another server."""
        return ChangesBefore(None, [])


@contextmanager
def reach(options: TuneOptions, folder: Path, console: Console, stop: Stop) -> Iterator[RunningServer]:
    """The server to tune, connected to. An embedded one is started first and ended last."""
    if options.target is not None and options.bench:
        with _under_bench(options, options.target, folder, console, stop) as server:
            yield server
        return
    if options.target is not None:
        with closing(connected(options, options.target, options.model, control=True)) as target:
            _print_notes(target, console)
            yield RunningServer(target)
        return
    with closing(Embedded(folder, embedded_settings(options), stop.sleep)) as embedded:
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
    options: TuneOptions, address: str, folder: Path, console: Console, stop: Stop
) -> Iterator[BenchedServer]:
    """The server at an address, under the run's own load."""
    with closing(connected(options, address, options.model, control=True)) as found:
        options = dataclasses.replace(options, model=found.model)
    with closing(Embedded(folder, embedded_settings(options), stop.sleep)) as embedded:
        key = read_control_key(options.control_key_file)
        with closing(EmbeddedTarget(embedded, options.metrics_url, key)) as target:
            target.connect()
            _print_notes(target, console)
            yield BenchedServer(target, embedded, options)


def connected(options: TuneOptions, address: str, model: str | None, control: bool) -> Target:
    """A target, connected to. `control` is True if its configuration is to be changed."""
    target = Target(
        address, model, options.metrics_url, read_control_key(options.control_key_file), options.tls_ca
    )
    target.connect(control=control)
    return target


def embedded_settings(options: TuneOptions) -> EmbeddedSettings:
    """ValueError for a load that rrl-load would refuse."""
    arrivals = make_arrivals(options.arrivals, options.rate or 1.0)
    make_sizes(options.sizes, arrivals.sizes if isinstance(arrivals, TimestampTrace) else None)
    if options.rate is None and options.sizes.startswith("trace"):
        raise ValueError("--sizes trace needs a --rate: the server is measured without the trace")
    return EmbeddedSettings(
        model=options.model or "minilm",
        rate_per_s=options.rate,
        arrivals=options.arrivals,
        sizes=options.sizes,
        seed=options.seed,
        input_data=options.input_data,
        target=options.target or "",
        tls_ca=options.tls_ca,
    )


def _print_notes(target: Target, console: Console) -> None:
    for note in target.notes:
        console.print(note, style="yellow")
