"""The grid of configurations to search on a live target, and whether a given one fits it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rrl.space import Configuration, ConfigurationSpace
from serving_adapter import resources
from serving_adapter.knob_limits import CLUSTER_KNOBS, KNOBS, Limits, check
from serving_adapter.target import Room, Target

USUAL_CORES = 4  # of a machine that does not tell


def default_space(
    knobs: Mapping[str, Limits], cores: int | None, room: Room | None = None
) -> ConfigurationSpace:
    """The grid to search where none is given: of these knobs, within their limits.

    `cores`: of the server's machine, if that is known. On a cluster `room` stands in their place. A server
    that tells no knobs can only be observed, so one configuration stands for what is in force.
    """
    cores = cores or USUAL_CORES
    instances: Sequence[int] = range(1, min(4, 2 * cores) + 1)
    threads = _powers_of_two(cores)
    if room is not None:
        instances = sorted({*_powers_of_two(room.instances), room.instances})
        threads = _powers_of_two(room.threads)
    values: dict[str, Sequence[int]] = {
        "instances": instances,
        "intra_op_threads": threads,
        "inter_op_threads": threads,
        "max_batch_size": (1, 2, 4, 8, 16),
        "max_queue_delay_us": (0, 1000, 2000, 5000),
        "max_ongoing_requests": (5, 16, 64),  # of a replica of Ray Serve: its default, and more than a batch
    }
    if not knobs:
        return ConfigurationSpace.of(instances=[1])
    within = {name: _within(knobs[name], usual) for name, usual in values.items() if name in knobs}
    return ConfigurationSpace.of(**within)


def _within(limits: Limits, usual: Sequence[int]) -> list[int]:
    """Those of the usual values that a knob may have; where it may have none, the nearest that it may."""
    fitting = [value for value in usual if limits.low <= value <= limits.high]
    return fitting or sorted({min(max(value, limits.low), limits.high) for value in usual})


def _powers_of_two(most: int) -> list[int]:
    """From 1 up to `most`."""
    return [2**k for k in range(int(math.log2(max(1, most))) + 1)]


def cores_of(target: Target, given: int | None = None) -> int | None:
    """The cores that the target's server may use; None where nothing tells them.

    Its own word counts first, as a budget may be less than it has, then the operator's, `given`. The tuner's
    own cores come last: in a container beside the server it has a limit of its own.
    """
    return target.cores or given or (resources.cores() if target.is_local else None)


def check_space(space: ConfigurationSpace, knobs: Mapping[str, Limits], *found: Configuration) -> None:
    """ValueError where a target has not all of these knobs, or cannot have all of these values.

    It can have the values that it was found with.
    """
    unknown = [name for name in space.names if name not in knobs]
    if unknown:
        has = ", ".join(knobs) or "none"
        all_known = KNOBS | CLUSTER_KNOBS
        known = "" if set(unknown) <= set(all_known) else f" (known knobs: {', '.join(all_known)})"
        raise ValueError(f"the target has no knob {', '.join(unknown)}; it has {has}{known}")
    for knob in space.knobs:
        for value in knob.values:
            if value not in [each.get(knob.name) for each in found]:
                check({knob.name: value}, knobs)
