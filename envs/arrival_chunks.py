"""An arrival process as it is read, chunk by chunk: checked, and copied or pickled with an environment."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from serving_adapter.load.arrivals import Arrivals


class ArrivalChunks(Iterator[np.ndarray]):
    """The chunks of `arrivals.times_s(rng)`; ValueError for one that does not ascend from the one before.

    A generator cannot be copied. So a copy starts the process anew from the same random numbers, and reads
    as many chunks as were read.
    """

    def __init__(self, arrivals: Arrivals, rng: np.random.Generator) -> None:
        self._arrivals, self._rng = arrivals, copy.deepcopy(rng)
        self._chunks = iter(arrivals.times_s(rng))
        self._read = 0
        self._last_s = 0.0

    def __next__(self) -> np.ndarray:
        chunk = np.asarray(next(self._chunks))
        if chunk.ndim != 1 or chunk.dtype.kind not in "fiu":
            raise ValueError(
                "times_s of arrivals must yield one-dimensional arrays of seconds, "
                f"got one of shape {chunk.shape} of {chunk.dtype}"
            )
        self._read += 1
        if chunk.size:
            ascends = chunk[0] >= self._last_s and bool((chunk[1:] >= chunk[:-1]).all())
            if not (ascends and chunk[-1] < math.inf):
                raise ValueError(
                    "times_s of arrivals must yield finite seconds that ascend from 0, "
                    f"got {_shown(chunk)} after {self._last_s:g}"
                )
            self._last_s = float(chunk[-1])
        return chunk

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_chunks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._chunks = iter(self._arrivals.times_s(copy.deepcopy(self._rng)))
        for _ in range(self._read):
            next(self._chunks)


def _shown(chunk: np.ndarray) -> str:
    return ", ".join(f"{moment:g}" for moment in chunk[:3]) + (", ..." if len(chunk) > 3 else "")
