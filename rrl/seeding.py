"""Whatever NumPy takes as a seed, as the one whole number that every library here takes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

Seed = int | np.integer | Sequence[int] | np.ndarray | np.random.SeedSequence | np.random.Generator | None

BELOW = 2**32  # the seeds of torch and Stable-Baselines3


def whole_seed(seed: Seed, below: int | None = BELOW) -> int:
    """A small whole number is itself; None is drawn anew each time; the rest is mixed down, always the same.

    ValueError, in one sentence, for what NumPy would refuse too.
    """
    if isinstance(seed, Integral) and int(seed) >= 0 and (below is None or int(seed) < below):
        return int(seed)
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(BELOW))
    try:
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"a seed must be a whole number from 0 up, a sequence of such numbers, or None, got {seed!r}"
        ) from None
    return int(sequence.generate_state(1)[0])
