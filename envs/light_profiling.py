"""`rrl-profile`: light profiling (SERF, section 4) of a live target into a machine file for the simulator.

For each number of threads, N instances are kept busy with batches of B requests by N·B requests that are
always outstanding. The target's own telemetry then tells the service time of a batch by (busy instances,
batch size). Only a batch that starts with all N busy counts. One that starts with fewer is soon joined by
others, and would make S[n] of the smaller n too long.

The configuration found is put back, after Ctrl-C as well. A profile claims its target as rrl-tune does: the
two, and two of either, exclude each other. After kill -9 the next start of either puts the found one back.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from envs.filled_times import fill
from envs.profile_load import REQUEST_TIMEOUT_S, ProfileLoad
from envs.profiler import measure
from envs.target_claim import restore_point, restored
from envs.target_like import TargetLike
from envs.target_space import cores_of, default_space
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from rrl.tuning.restore import RestorePoint
from rrl.tuning.state_file import PROFILER
from serving_adapter.control_key import read_control_key
from serving_adapter.model_configuration import KNOBS, Limits, check
from serving_adapter.options import fail, in_a_sentence, parse
from serving_adapter.target import Target, TargetError
from serving_adapter.whole_files import check_place

FILL_DELAY_US = 50_000  # a batch waits this long for its requests, which are all on their way
AS_FOUND = "the target is as it was found"
NOT_PUT_BACK = "the target may not be as it was found; the next rrl-profile or rrl-tune on it puts that back"
USUAL_BATCH_SIZES = (1, 2, 4, 8)
FULL_BATCHES = 3  # of each instance, at least

Drive = Callable[[int, int], None]
"""drive(requests, outstanding): sends so many requests, so many at a time, and waits for the answers."""


@dataclass(frozen=True)
class ProfileOptions:
    """Measures the service times of a live server and writes them as a machine file (.npz)."""

    target: str
    """HOST:PORT of the server's gRPC port. It should have no other load meanwhile."""
    out: Path
    """The machine file to write."""
    model: str | None = None
    """The model to profile; may be left out where the server has one."""
    instances: str = "1:4"
    """Numbers of busy instances to measure."""
    batch_sizes: str | None = None
    """Batch sizes to measure; default: 1,2,4,8, as far as the model takes them."""
    intra: str | None = None
    """Intra-op threads; default: powers of two up to the number of cores."""
    inter: str | None = None
    """Inter-op threads; default: as intra, or 1 where the model has no parallel branches."""
    requests_per_point: int = 20
    """Requests at least for each combination; more where the batches need them."""
    size: int = 32
    """Length of the inputs' variable dimensions."""
    seed: int = 0
    """Of the inputs' values."""
    metrics_url: str | None = None
    """The server's metrics page, where it does not advertise one."""
    control_key_file: Path | None = None
    """File with the key that changing the configuration needs (or set RRL_CONTROL_KEY)."""
    tls_ca: Path | None = None
    """PEM certificates to trust; makes the connection TLS."""

    def __post_init__(self) -> None:
        if self.requests_per_point < 1 or self.size < 1:
            raise ValueError("--requests-per-point and --size must be at least 1")
        if self.seed < 0:
            raise ValueError(f"--seed must be at least 0, got {self.seed}")


class Grid(NamedTuple):
    """The values to measure, each ascending."""

    inter_op_threads: tuple[int, ...]
    intra_op_threads: tuple[int, ...]
    instances: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    def configurations(self, knobs: Mapping[str, Limits]) -> Iterator[tuple[tuple[int, int], dict[str, int]]]:
        """((i, a), configuration) of every point; threads, the slowest to change, outermost."""
        for (i, inter), (a, intra), instances, batch_size in product(
            enumerate(self.inter_op_threads),
            enumerate(self.intra_op_threads),
            self.instances,
            self.batch_sizes,
        ):
            every = {
                "inter_op_threads": inter,
                "intra_op_threads": intra,
                "instances": instances,
                "max_batch_size": batch_size,
                "max_queue_delay_us": FILL_DELAY_US if batch_size > 1 else 0,
            }
            yield (i, a), {name: value for name, value in every.items() if name in knobs}


def make_grid(options: ProfileOptions, knobs: Mapping[str, Limits], cores: int | None) -> Grid:
    """The grid of the options on this target; ValueError for values that it cannot have."""
    default = {knob.name: knob.values for knob in default_space(knobs, cores).knobs}
    if "max_batch_size" in knobs:
        rows = knobs["max_batch_size"].high
        default["max_batch_size"] = tuple(size for size in USUAL_BATCH_SIZES if size <= rows)
    texts = {
        "inter_op_threads": options.inter,
        "intra_op_threads": options.intra,
        "instances": options.instances,
        "max_batch_size": options.batch_sizes,
    }
    axes = []
    for name, text in texts.items():
        values = default.get(name, (1,)) if text is None else _values(name, text)
        if name not in knobs and values != (1,):
            raise ValueError(f"the target has no knob {name}, so only {name}=1 can be profiled")
        for value in values:
            check({name: value}, knobs if name in knobs else KNOBS)
        axes.append(values)
    return Grid(*axes)


def light_profile(
    target: TargetLike,
    drive: Drive,
    grid: Grid,
    requests_per_point: int,
    done_one: Callable[[], None] = lambda: None,
) -> tuple[Machine, int]:
    """The machine, and how many of its entries were measured; the target is left as it was found."""
    found = target.configuration()
    shape = tuple(map(len, grid))
    count, total_s = np.zeros(shape, int), np.zeros(shape)
    try:
        for (i, a), configuration in grid.configurations(target.knobs()):
            n, b = configuration.get("instances", 1), configuration.get("max_batch_size", 1)
            target.apply(configuration)
            drive(n * b, n * b)  # the first requests after a change are slow
            before = target.read()
            drive(max(requests_per_point, FULL_BATCHES * n * b), n * b)
            for row in measure(before, target.read()).telemetry:
                busy = row.busy_instances or n  # a stock Triton does not tell: the load keeps all busy
                if busy == n and row.batch_size in grid.batch_sizes:
                    cell = i, a, grid.instances.index(n), grid.batch_sizes.index(row.batch_size)
                    count[cell] += row.count
                    total_s[cell] += row.total_s
            done_one()
    finally:
        target.apply(found)
    times_s = np.empty(shape)
    for i, a in np.ndindex(shape[:2]):
        times_s[i, a] = fill(count[i, a], total_s[i, a], grid.instances, grid.batch_sizes)
    inter, intra, instances, batch_sizes = map(np.asarray, grid)
    return Machine(inter, intra, instances, batch_sizes, times_s), int(np.count_nonzero(count))


def _values(name: str, text: str) -> tuple[int, ...]:
    return ConfigurationSpace.parse(f"{name}={text}").knobs[0].values


def _interrupted(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def profile(options: ProfileOptions, target: Target) -> None:
    cores = cores_of(target, target.configuration())
    grid = make_grid(options, target.knobs(), cores)
    points = len(list(grid.configurations(target.knobs())))
    columns = (TextColumn("profiling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    load = ProfileLoad(options.target, target.model, options.size, options.seed, options.tls_ca)
    console = Console(stderr=True)
    try:
        with _claimed(target, console), Progress(*columns, console=console) as progress:
            task = progress.add_task("points", total=points)

            def done_one() -> None:
                progress.advance(task)
                target.prolong_lease()

            machine, measured = light_profile(target, load.drive, grid, options.requests_per_point, done_one)
    finally:
        load.close()
    machine.save(options.out)
    print(f"wrote {options.out}: {measured} of {machine.service_time_s.size} service times measured")


@contextmanager
def _claimed(target: Target, console: Console) -> Iterator[None]:
    """Keeps others off. The claim outlives a target that was not put back."""
    point = restore_point(target, PROFILER)
    try:
        restored(point, target, console)
        found = target.configuration()
        point.claim(found, target.config_pbtxt(), REQUEST_TIMEOUT_S)
    except TargetError as error:
        fail(str(error))
    try:
        yield
    except BaseException:
        is_put_back = _released(point, target, found)
        print(AS_FOUND if is_put_back else NOT_PUT_BACK, file=sys.stderr)
        raise
    _released(point, target, found)


def _released(point: RestorePoint, target: Target, found: dict[str, int]) -> bool:
    """Gives the claim back if what was found is in force."""
    with suppress(TargetError):
        if target.configuration() == found:
            point.release()
            return True
    return False


def main() -> None:
    options = parse(ProfileOptions)
    target = _connected(options)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        profile(options, target)
    except ValueError as error:
        fail(str(error))
    except (TargetError, OSError) as error:
        print(in_a_sentence(error), file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        target.close()


def _connected(options: ProfileOptions) -> Target:
    if not options.out.parent.is_dir():
        fail(f"there is no folder {str(options.out.parent)!r} to write {options.out.name!r} into: make it")
    try:
        check_place(options.out)
        target = Target(
            options.target,
            options.model,
            options.metrics_url,
            read_control_key(options.control_key_file),
            None if options.tls_ca is None else str(options.tls_ca),
        )
        target.connect()
    except OSError as error:
        fail(in_a_sentence(error))
    except (ValueError, TargetError) as error:
        fail(str(error))
    for note in target.notes:
        print(note, file=sys.stderr)
    return target


if __name__ == "__main__":
    main()
