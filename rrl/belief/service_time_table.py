"""The table of service times that a space needs, and its entries by number.

An entry is S[o, u, i, a, c, n, b]: a batch of b requests that starts with n of c instances busy, i operators
at once and a threads in each, on each of u nodes. The table holds those with n <= c, for the batch sizes of a
coarse grid.

o is 1 where requests are taken one by one, so that b = 1, and 0 where they may be batched. A batch of one is
not the same in both: a server that never saw a larger one may give its memory back after each request.
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
        most = max(values.get("max_batch_size", (1,)))
        self.batch = _batch_grid(most)
        both = most > 1 and 1 in values["max_batch_size"]
        busy = np.arange(1, self.instances[-1] + 1)
        axes = (np.arange(1 + both), self.nodes, self.inter, self.intra, self.instances, busy, self.batch)
        self.shape = tuple(len(axis) for axis in axes)
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        used = (grid[..., 5] <= grid[..., 4]) & ((grid[..., 0] == 0) | (grid[..., 6] == 1))
        self._number = np.full(self.shape, -1)
        self._number[used] = np.arange(used.sum())
        self.one_by_one = grid[used][:, 0] == 1
        """(P,) bool: o."""
        tables = np.stack(np.meshgrid(*axes[:-2], indexing="ij"), axis=-1).reshape(-1, len(axes) - 2)
        self.table_threads = tables[:, 2:4]
        """(tables, 2): i and a of every (o, u, i, a, c), row-major."""
        points = np.roll(grid[used][:, 1:], -1, axis=-1).astype(float)  # (P, 6): i, a, c, n, b, u
        self.points = points if len(self.nodes) > 1 else points[:, :-1].copy()
        """(P, 5): i, a, c, n, b; and as a sixth u, where it is a knob."""

    def entry(self, configuration: Configuration, busy: int, batch_size: int) -> int:
        """The number of the entry nearest to a batch size."""
        positions = self._positions(configuration, batch_size)
        n = min(max(busy, 1), int(self.instances[positions[-1]])) - 1
        return int(self._number[positions][n, self.nearest(batch_size)])

    def entries(self, configuration: Configuration, batch_size: int) -> np.ndarray:
        """(c,) the numbers of the entries with 1 .. c busy."""
        positions = self._positions(configuration, batch_size)
        c = int(self.instances[positions[-1]])
        return np.asarray(self._number[positions][:c, self.nearest(batch_size)])

    def at(self, *positions: np.ndarray) -> np.ndarray:
        """(K,) numbers of entries, given by their positions along the axes o, u, i, a, c, n, b."""
        return np.asarray(self._number[positions])

    def neighbour_by_batch(self, number: int, step: int) -> int | None:
        """The entry of the next larger (1) or smaller (-1) batch size; None at an end of the grid."""
        on_grid = 0 <= number % len(self.batch) + step < len(self.batch)
        return None if self.one_by_one[number] or not on_grid else number + step

    def neighbour_by_busy(self, number: int, step: int) -> int | None:
        """The entry of one more (1) or one less (-1) instance busy; None where there are not so many."""
        busy, instances = self.points[number, 3], self.points[number, 2]
        if not 1 <= busy + step <= instances:
            return None
        return number + step * (1 if self.one_by_one[number] else len(self.batch))

    def nearest(self, batch_size: int) -> int:
        """The position of the batch size of the grid that is nearest by ratio."""
        return int(np.argmin(np.abs(np.log(self.batch / batch_size))))

    def times_s(self, log_times: np.ndarray) -> np.ndarray:
        """(..., tables, N, B) S of every (o, u, i, a, c), row-major, from (..., P) ln S."""
        leading = log_times.shape[:-1]
        one = np.ones((*leading, 1))  # what has the number -1: n > c, or b > 1 one by one
        tables = np.concatenate([np.exp(log_times), one], axis=-1)[..., self._number]
        return tables.reshape(*leading, -1, *self.shape[-2:])

    def _positions(self, configuration: Configuration, batch_size: int) -> tuple[int, int, int, int, int]:
        """A request of several items is a batch of so many, though no other may join it."""
        alone = self.shape[0] == 2 and configuration["max_batch_size"] == 1
        one_by_one = int(alone and self.nearest(batch_size) == 0)
        nodes = int(np.searchsorted(self.nodes, configuration.get("nodes_per_unit", 1)))
        inter = int(np.searchsorted(self.inter, configuration.get("inter_op_threads", 1)))
        intra = int(np.searchsorted(self.intra, configuration.get("intra_op_threads", 1)))
        instances = int(np.searchsorted(self.instances, configuration.get("instances", 1)))
        return one_by_one, nodes, inter, intra, instances


def _batch_grid(largest: int) -> np.ndarray:
    return np.array([size for size in BATCH_SIZES if size < largest] + [largest])
