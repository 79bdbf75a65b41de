"""The table of service times that a space needs, and its entries by number.

An entry is S[u, i, a, c, n, b]: a batch of b requests that starts with n of c instances busy, i operators at
once and a threads in each, on each of u nodes. The table holds those with n <= c, for the batch sizes of a
coarse grid.
"""

from __future__ import annotations

import numpy as np

from rrl.space import Configuration, ConfigurationSpace

BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class ServiceTimeTable:
    """P entries, numbered row by row."""

    def __init__(self, space: ConfigurationSpace) -> None:
        values = {knob.name: knob.values for knob in space.knobs}
        self.nodes = np.asarray(values.get("nodes_per_unit", (1,)))
        self.inter = np.asarray(values.get("inter_op_threads", (1,)))
        self.intra = np.asarray(values.get("intra_op_threads", (1,)))
        self.instances = np.asarray(values.get("instances", (1,)))
        self.batch = _batch_grid(max(values.get("max_batch_size", (1,))))
        busy = np.arange(1, self.instances[-1] + 1)
        axes = (self.nodes, self.inter, self.intra, self.instances, busy, self.batch)
        self.shape = tuple(len(axis) for axis in axes)
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        used = grid[..., 4] <= grid[..., 3]
        self._number = np.full(self.shape, -1)
        self._number[used] = np.arange(used.sum())
        points = np.roll(grid[used], -1, axis=-1).astype(float)  # (P, 6): i, a, c, n, b, u
        self.points = points if len(self.nodes) > 1 else points[:, :-1].copy()
        """(P, 5): i, a, c, n, b; and as a sixth u, where it is a knob."""

    def entry(self, configuration: Configuration, busy: int, batch_size: int) -> int:
        """The number of the entry nearest to a batch size."""
        positions = self._positions(configuration)
        n = min(max(busy, 1), int(self.instances[positions[-1]])) - 1
        return int(self._number[positions][n, self.nearest(batch_size)])

    def entries(self, configuration: Configuration, batch_size: int) -> np.ndarray:
        """(c,) the numbers of the entries with 1 .. c busy."""
        positions = self._positions(configuration)
        c = int(self.instances[positions[-1]])
        return np.asarray(self._number[positions][:c, self.nearest(batch_size)])

    def at(self, *positions: np.ndarray) -> np.ndarray:
        """(K,) numbers of entries, given by their positions along the axes u, i, a, c, n, b."""
        return np.asarray(self._number[positions])

    def nearest(self, batch_size: int) -> int:
        """The position of the batch size of the grid that is nearest by ratio."""
        return int(np.argmin(np.abs(np.log(self.batch / batch_size))))

    def times_s(self, log_times: np.ndarray) -> np.ndarray:
        """(..., tables, N, B) S of every (u, i, a, c), row-major, from (..., P) ln S."""
        leading = log_times.shape[:-1]
        one = np.ones((*leading, 1))  # what has the number -1: n > c
        tables = np.concatenate([np.exp(log_times), one], axis=-1)[..., self._number]
        return tables.reshape(*leading, -1, *self.shape[-2:])

    def _positions(self, configuration: Configuration) -> tuple[int, int, int, int]:
        nodes = int(np.searchsorted(self.nodes, configuration.get("nodes_per_unit", 1)))
        inter = int(np.searchsorted(self.inter, configuration.get("inter_op_threads", 1)))
        intra = int(np.searchsorted(self.intra, configuration.get("intra_op_threads", 1)))
        return nodes, inter, intra, int(np.searchsorted(self.instances, configuration.get("instances", 1)))


def _batch_grid(largest: int) -> np.ndarray:
    return np.array([size for size in BATCH_SIZES if size < largest] + [largest])
