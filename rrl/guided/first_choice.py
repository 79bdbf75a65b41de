"""What is tried before anything is known: common knowledge, where an agent's own cannot reach yet.

| nothing is known of | tried first |
|---|---|
| the server and its cores | the most central of those that should serve a heavy load well |
| anything but the start, while the cores are known | the rule of thumb: an instance a core, one thread each |
"""

from __future__ import annotations

import numpy as np

from rrl.belief.belief import Belief
from rrl.space import Configuration, ConfigurationSpace

# The first choice is made for a load of this share of the largest capacity of any configuration.
FIRST_SHARE = 0.7
# It is the most central configuration whose latency is within this factor of the lowest.
FIRST_WITHIN = 2.5
RULE_OF_THUMB = {"intra_op_threads": 1, "inter_op_threads": 1, "max_batch_size": 8, "max_queue_delay_us": 0}


def central(belief: Belief, space: ConfigurationSpace, kept_off: frozenset[int] = frozenset()) -> int:
    """The most central of those that serve a heavy load well, by what is known before the first interval.

    Without delay: beside service times of unknown length none can be judged. What the guard refuses is left
    out, and so is what failed every request, as long as there is anything else.
    """
    replay = belief.replay
    no_delay = replay.delay_s == replay.delay_s.min()
    fails = belief.failures.of(np.arange(len(space))) >= 1
    fails[list(kept_off)] = True
    numbers = np.flatnonzero(no_delay & replay.allowed & ~fails)
    for more in (no_delay & replay.allowed, replay.allowed):
        if not len(numbers):
            numbers = np.flatnonzero(more)
    latency_ms = belief.screened_at(numbers, FIRST_SHARE * replay.capacity_per_s.max())
    good = numbers[latency_ms <= FIRST_WITHIN * latency_ms.min()]
    from_centre = space.features[good] - space.features.mean(axis=0)
    return int(good[np.argmin(np.linalg.norm(from_centre, axis=1))])


def rule_of_thumb(space: ConfigurationSpace, cores: int | None, found: Configuration) -> int | None:
    """The configuration nearest to the rule; None where nobody knows the cores, or instances are fixed.

    A knob that the rule does not name keeps the value found, or has the lowest where that is not known.
    """
    if cores is None or "instances" not in space.names:
        return None
    wanted = {**found, "instances": cores, **RULE_OF_THUMB}
    return space.nearest({knob.name: wanted.get(knob.name, knob.values[0]) for knob in space.knobs})
