"""Which configurations are worth comparing, in which order, and which need no less than another."""

from __future__ import annotations

import numpy as np

from rrl.belief.belief import Belief, Predicted
from rrl.knobs import MEMORY_KNOBS
from rrl.objective import LeastResources, Objective
from rrl.space import ConfigurationSpace

_NEEDS_NONE = "max_queue_delay_us"


def without_vain_delays(belief: Belief, in_force: int, numbers: np.ndarray) -> np.ndarray:
    """Those numbers without changes of the delay that bring nothing.

    A batch of one is full at once, whatever the delay.
    """
    batch, delay_s = belief.replay.max_batch_size, belief.replay.delay_s
    return numbers[(batch[numbers] > 1) | (delay_s[numbers] == delay_s[in_force])]


def cheapest_first(objective: Objective, screened: Predicted, threads: np.ndarray) -> np.ndarray:
    """(K,) positions, the lowest cost first.

    Where threads count, the best of each number of threads come before the second best of any. As screening
    is rough, those just above and below the fewest that keep the limit are then compared.
    """
    if not isinstance(objective, LeastResources):
        return np.argsort(screened.cost, kind="stable")
    order = np.lexsort((screened.p95_ms, screened.cost))
    place = np.zeros(len(order), dtype=int)  # of each among those of as many threads
    for each in np.unique(threads):
        alike = order[threads[order] == each]
        place[alike] = np.arange(len(alike))
    return np.asarray(order[np.argsort(place[order], kind="stable")])


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
