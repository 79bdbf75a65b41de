"""One budget of cores for the models of a server.

A configuration uses as many cores as it puts threads to work (`rrl.knobs.THREAD_KNOBS`). A model may use what
the others leave of the budget. It may always use what it was found with, so that this can come back.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rrl.knobs import threads_of
from rrl.space import Configuration, ConfigurationSpace, with_fixed


def cores_used(configuration: Configuration) -> int:
    """The threads that a configuration puts to work, one on each core."""
    return threads_of(configuration)


def share(budget: int, found: Configuration, others: Iterable[Configuration]) -> int:
    """The cores for a model found so, beside others in these configurations. ValueError without a budget."""
    if budget < 1:
        raise ValueError(f"the budget must be at least 1 core, got {budget}; give --cores")
    left = budget - sum(cores_used(other) for other in others)
    return max(left, cores_used(found))


def over_budget(space: ConfigurationSpace, cores: int, found: Configuration) -> frozenset[int]:
    """The numbers of the configurations that use more cores than these. Knobs off the grid stay as found."""
    return frozenset(np.flatnonzero(with_fixed(space, found).threads > cores).tolist())
