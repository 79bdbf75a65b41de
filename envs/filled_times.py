"""Service times that a profile did not observe, filled in from those that it did."""

from __future__ import annotations

import numpy as np

from serving_adapter.target import TargetError


def fill(
    count: np.ndarray, total_s: np.ndarray, instances: tuple[int, ...], batch_sizes: tuple[int, ...]
) -> np.ndarray:
    """(N, B) mean service times, those not observed filled in.

    Along batch sizes first, then along instances: ln(time) linear in ln(value), beyond the ends with the
    slope at the end; no entry filled in is lower than one with fewer instances or smaller batches.
    """
    observed = count > 0
    if not observed.any():
        raise TargetError(
            "the target told of no batch with all instances busy, so there is nothing to profile; "
            "give its metrics URL"
        )
    log_time = np.full(count.shape, np.nan)
    log_time[observed] = np.log(total_s[observed] / count[observed])
    for row in log_time:
        _fill_line(row, np.log(batch_sizes))
    for column in log_time.T:
        _fill_line(column, np.log(instances))
    for n, b in np.argwhere(~observed):  # in an order in which those before are final
        log_time[n, b] = max(log_time[: n + 1, b].max(), log_time[n, : b + 1].max())
    return np.exp(log_time)


def _fill_line(log_time: np.ndarray, position: np.ndarray) -> None:
    """In place; a line without any value stays as it is."""
    known = np.flatnonzero(~np.isnan(log_time))
    if len(known) == 0:
        return
    x, y = position[known], log_time[known]
    log_time[:] = np.interp(position, x, y)
    if len(known) > 1:
        for end, near, beyond in ((0, 1, position < x[0]), (-1, -2, position > x[-1])):
            slope = max(0.0, (y[end] - y[near]) / (x[end] - x[near]))
            log_time[beyond] = y[end] + slope * (position[beyond] - x[end])
