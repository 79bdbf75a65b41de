"""The arrivals of `SimulatedServingVector`: one process for each environment."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rrl.queueing.interval_ends import Length, Stream, interval_ends_s

_NO_CHUNKS: Iterator[np.ndarray] = iter(())


class ArrivalStreams:
    """An arrival process for each environment, read ahead as far as is asked."""

    def __init__(self, num_envs: int) -> None:
        self._chunks: list[Iterator[np.ndarray]] = [_NO_CHUNKS] * num_envs
        self._all_known = np.zeros(num_envs, bool)
        self.times_s = np.empty((num_envs, 0))
        self.first = np.zeros(num_envs, np.int64)  # where the arrivals to come begin
        self.known = np.zeros(num_envs, np.int64)  # where they end, as far as they are read

    def begin(self, e: int, chunks: Iterator[np.ndarray]) -> None:
        self._chunks[e] = chunks
        self._all_known[e] = False
        self.first[e] = self.known[e] = 0

    def ended(self, e: int) -> bool:
        """True if no arrival is to come."""
        while self.first[e] == self.known[e] and not self._all_known[e]:
            self._read(e)
        return bool(self.first[e] == self.known[e])

    def interval_ends(
        self, which: np.ndarray, begin_s: np.ndarray, requests: int, interval_s: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """When the intervals that begin now end, and where in `times_s` their arrivals do."""
        end_s, last = begin_s.copy(), self.first.copy()
        length = Length(requests, math.nan if interval_s is None else interval_s)
        while len(which):
            stream = Stream(self.times_s, self.first, self.known, self._all_known)
            unclear = interval_ends_s(which, stream, begin_s, length, end_s, last)
            which = np.flatnonzero(unclear)
            for e in which.tolist():
                self._read(e)
                # Reading may have moved the arrivals to the front.
                last[e] = self.first[e]
        return end_s, last

    def until(self, which: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The arrivals to come of these environments, up to `last`, one environment's after another's."""
        ends = zip(which.tolist(), self.first[which].tolist(), last[which].tolist(), strict=True)
        return np.concatenate([self.times_s[e, first:end] for e, first, end in ends])

    def _read(self, e: int) -> None:
        chunk = next(self._chunks[e], None)
        if chunk is None:
            self._all_known[e] = True
            return
        left = self.times_s[e, self.first[e] : self.known[e]].copy()
        count = len(left) + len(chunk)
        if count > self.times_s.shape[1]:
            grown = np.empty((len(self.first), 2 * count))
            grown[:, : self.times_s.shape[1]] = self.times_s
            self.times_s = grown
        self.times_s[e, : len(left)] = left
        self.times_s[e, len(left) : count] = chunk
        self.first[e], self.known[e] = 0, count
