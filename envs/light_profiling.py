"""`rrl-profile`: light profiling (SERF, section 4) of a live target into a machine file for the simulator.

For each number of threads, N instances are kept busy with batches of B requests by N·B requests that are
always outstanding. The target's own telemetry then tells the service time of a batch by (busy instances,
batch size). Only a batch that starts with all N busy counts. One that starts with fewer is soon joined by
others, and would make S[n] of the smaller n too long.

With `--rested` N requests come at once after a pause, too, in rounds. So all of them find their instances at
rest, and the machine file gets their mean service time beside the other (`rrl.queueing.start_up`). The other
is then of instances that never rest: as many batches wait as are in service.

The configuration found is put back, after Ctrl-C as well. What another client sets in the middle of a change
ends the profile, and stays. A profile claims its target as rrl-tune does: the two, and two of either, exclude
each other. After kill -9 the next start of either puts the found one back.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from envs.filled_times import fill
from envs.profile_load import REQUEST_TIMEOUT_S, ProfileLoad
from envs.profile_options import Grid, ProfileOptions, make_grid
from envs.profiler import measure
from envs.target_claim import restore_point, restored
from envs.target_space import cores_of
from rrl.knobs import in_words
from rrl.queueing.machine import Machine
from rrl.tuning.restore import RestorePoint
from rrl.tuning.state_file import PROFILER
from serving_adapter.control_key import read_control_key
from serving_adapter.flags.parsing import fail, in_a_sentence, parse
from serving_adapter.target import Overtaken, Target, TargetError, open_target
from serving_adapter.whole_files import check_place

AS_FOUND = "the target is as it was found"
NOT_PUT_BACK = "the target may not be as it was found; the next rrl-profile or rrl-tune on it puts that back"
FULL_BATCHES = 3  # of each instance, at least
PAUSE_S = 0.02  # a rest, after which an instance starts as after a longer one

Drive = Callable[[int, int], None]
"""drive(requests, outstanding): sends so many requests, so many at a time, and waits for the answers."""

DriveRounds = Callable[[int, int, float], None]
"""drive_rounds(rounds, outstanding, pause_s): so many requests at once, and a pause after their answers."""


def light_profile(
    target: Target,
    drive: Drive,
    grid: Grid,
    requests_per_point: int,
    done_one: Callable[[], None] = lambda: None,
    drive_rounds: DriveRounds | None = None,
) -> tuple[Machine, int]:
    """The machine, and how many of its entries were measured; the target is left as it was found.

    With `drive_rounds` the machine has times after a rest, too. Overtaken where another client has set
    something else in the middle of a change: the target is left so.
    """
    shape = tuple(map(len, grid))
    count, total_s = np.zeros(shape, int), np.zeros(shape)
    rested_count, rested_s = np.zeros(shape[:3], int), np.zeros(shape[:3])
    with _put_back(target):
        for (i, a), configuration in grid.configurations(target.knobs()):
            n, b = configuration.get("instances", 1), configuration.get("max_batch_size", 1)
            outstanding = n * b if drive_rounds is None else 2 * n * b
            target.apply(configuration)
            drive(n * b, n * b)  # the first requests after a change are slow
            before = target.read()
            drive(max(requests_per_point, FULL_BATCHES * n * b), outstanding)
            for row in measure(before, target.read()).telemetry:
                busy = row.busy_instances or n  # a stock Triton does not tell: the load keeps all busy
                if busy == n and row.batch_size in grid.batch_sizes:
                    cell = i, a, grid.instances.index(n), grid.batch_sizes.index(row.batch_size)
                    count[cell] += row.count
                    total_s[cell] += row.total_s
            if drive_rounds is not None and b == 1:
                before = target.read()
                drive_rounds(-(-requests_per_point // n), n, PAUSE_S)
                of_one = i, a, grid.instances.index(n)
                for row in measure(before, target.read()).telemetry:
                    rested_count[of_one] += row.count
                    rested_s[of_one] += row.total_s
            done_one()
    times_s = np.empty(shape)
    for i, a in np.ndindex(shape[:2]):
        times_s[i, a] = fill(count[i, a], total_s[i, a], grid.instances, grid.batch_sizes)
    inter, intra, instances, batch_sizes = map(np.asarray, grid)
    machine = Machine(inter, intra, instances, batch_sizes, times_s)
    if drive_rounds is not None:
        rested_time_s = np.empty(shape[:3])
        for i, a in np.ndindex(shape[:2]):
            measured = rested_count[i, a, :, None], rested_s[i, a, :, None]
            rested_time_s[i, a] = fill(*measured, grid.instances, (1,))[:, 0]
        machine = replace(machine, rested_time_s=rested_time_s)
    return machine, int(np.count_nonzero(count))


@contextmanager
def _put_back(target: Target) -> Iterator[None]:
    """Puts what was found back, unless another client has set something else."""
    found, is_overtaken = target.configuration(), False
    try:
        yield
    except Overtaken:
        is_overtaken = True
        raise
    finally:
        if not is_overtaken:
            target.apply(found)


def _interrupted(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def profile(options: ProfileOptions, target: Target) -> None:
    cores = cores_of(target)
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

            rounds = load.drive_rounds if options.rested else None
            requests = options.requests_per_point
            machine, measured = light_profile(target, load.drive, grid, requests, done_one, rounds)
    finally:
        load.close()
    machine.save(options.out)
    and_rested = " (and after a rest)" if options.rested else ""
    of = machine.service_time_s.size
    print(f"wrote {options.out}: {measured} of {of} service times measured{and_rested}")


@contextmanager
def _claimed(target: Target, console: Console) -> Iterator[None]:
    """Keeps others off. The claim outlives a target that was not put back, unless it is another client's."""
    point = restore_point(target, PROFILER)
    try:
        restored(point, target, console)
        found = target.configuration()
        point.claim(found, target.config_text(), REQUEST_TIMEOUT_S)
    except TargetError as error:
        fail(str(error))
    try:
        yield
    except Overtaken:
        point.release()
        theirs = "the target is as another client has set it"
        print(f"{theirs}; it was found with {in_words(found)}", file=sys.stderr)
        raise
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
        target = open_target(
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
