"""Where the intervals of many servers end among their arrivals, compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rrl.queueing.compiling import compiled as _compiled


class Length(NamedTuple):
    """Of an interval: a number of requests, unless it has a duration."""

    requests: int
    duration_s: float  # or NaN


class Stream(NamedTuple):
    """The arrivals of every server, as far as they are known."""

    times_s: np.ndarray  # (servers, room)
    first: np.ndarray  # (servers,): where the arrivals to come begin
    known: np.ndarray  # (servers,): where those that are known end
    all_known: np.ndarray  # (servers,) bool


@_compiled
def interval_ends_s(
    which: np.ndarray,  # (K,) int: servers
    stream: Stream,
    begin_s: np.ndarray,  # (servers,)
    length: Length,
    end_s: np.ndarray,  # (servers,) filled: the first arrival that is not in the interval
    last: np.ndarray,  # (servers,) filled: where the interval's arrivals end
) -> Any:
    """(servers,) bool: more arrivals must be known to tell. At the end of all arrivals the last has time."""
    first, known, all_known = stream.first, stream.known, stream.all_known
    unclear = np.zeros(len(first), np.bool_)
    for e in which:
        times_s = stream.times_s[e, first[e] : known[e]]
        n = len(times_s)
        if np.isnan(length.duration_s):
            count = length.requests
            while count < n and times_s[count] <= begin_s[e]:  # Simultaneous arrivals stay together.
                count += 1
            if count < n:
                end_s[e] = times_s[count]
            elif all_known[e]:
                end_s[e] = times_s[n - 1] + max((times_s[n - 1] - begin_s[e]) / n, 1e-3)
            else:
                unclear[e] = True
        else:
            end_s[e] = begin_s[e] + length.duration_s
            unclear[e] = not all_known[e] and (n == 0 or times_s[n - 1] < end_s[e])
        if not unclear[e]:
            last[e] = first[e] + np.searchsorted(times_s, end_s[e])
    return unclear
