"""Which configurations are worth comparing with the one in force, and which need no less than another."""

from __future__ import annotations

import numpy as np

from rrl.belief.belief import Belief
from rrl.knobs import MEMORY_KNOBS
from rrl.space import ConfigurationSpace

_NEEDS_NONE = "max_queue_delay_us"


def without_vain_delays(belief: Belief, in_force: int, numbers: np.ndarray) -> np.ndarray:
    """Those numbers without changes of the delay that bring nothing.

    A batch of one is full at once, whatever the delay.
    """
    batch, delay_s = belief.replay.max_batch_size, belief.replay.delay_s
    return numbers[(batch[numbers] > 1) | (delay_s[numbers] == delay_s[in_force])]


def needing_no_less(space: ConfigurationSpace, number: int) -> np.ndarray:
    """(size,) bool: those that need at least as much memory as this one, which is among them.

    They have as many instances or more, and batches as large or larger. A delay needs no memory. What the
    other knobs need is not known, so these are the same.
    """
    index = space.indices[number]
    each = [
        space.indices[:, k] >= index[k] if name in MEMORY_KNOBS else space.indices[:, k] == index[k]
        for k, name in enumerate(space.names)
        if name != _NEEDS_NONE
    ]
    return np.all(each, axis=0) if each else np.ones(len(space), dtype=bool)
