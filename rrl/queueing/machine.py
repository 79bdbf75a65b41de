"""The machine: the table of service times that stands for hardware + model in simulation.

| symbol | here | meaning |
|---|---|---|
| i, a | `inter_op_threads`, `intra_op_threads` | i operators of a batch at once, a threads in each |
| n | `busy_instances` | batches in service, this one included |
| b | `batch_size` | requests in the batch |
| u | `nodes_per_unit` | nodes that serve the batch together; left out where all is of one node |
| S[i, a, n, b], S[i, a, n, b, u] | `service_time_s` | seconds from the start of a batch to its end |

A machine is measured from a live target (light profiling) or invented, and lives in one `.npz` file with
these arrays. A profile may add another, `rested_time_s` (I, A, N): the time of a batch of one request
that found its instance at rest. The simulator does not use it, SERF does (`start_up`).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rrl.seeding import whole_seed
from rrl.space import Configuration
from serving_adapter.whole_files import written_whole

AXES = ("inter_op_threads", "intra_op_threads", "busy_instances", "batch_size")
NODES = "nodes_per_unit"
RESTED = "rested_time_s"
_TIMES = ("service_time_s", RESTED)
UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError, MemoryError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),  # RuntimeError: encrypted, or compressed in another way
)
"""What numpy raises where a file is no .npz of plain arrays: a .npy, a pickle, cut off, damaged inside."""

_FIELD_WAVES = 64  # cosines summed into the random field; enough to look Gaussian
_FIELD_LENGTH = 1.5  # the field's correlation length, in units of ln(value): values within x4 go together


@dataclass(frozen=True, eq=False)
class Machine:
    """Service times over a grid of threads, busy instances, batch sizes and, it may be, nodes of a unit."""

    inter_op_threads: np.ndarray  # (I,) int, ascending
    intra_op_threads: np.ndarray  # (A,) int, ascending
    busy_instances: np.ndarray  # (N,) int, ascending
    batch_size: np.ndarray  # (B,) int, ascending
    service_time_s: np.ndarray  # (I, A, N, B) float64, or (I, A, N, B, U)
    rested_time_s: np.ndarray | None = None  # (I, A, N[, U]) float64; None where it was not measured
    nodes_per_unit: np.ndarray | None = None  # (U,) int, ascending; None where a batch is served by one node
    _tables: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in self.axes:
            object.__setattr__(self, name, _checked_axis(name, np.asarray(getattr(self, name))))
        without_batches = tuple(name for name in self.axes if name != "batch_size")
        for name, axes in (("service_time_s", self.axes), (RESTED, without_batches)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._checked_times(name, axes))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the table's axes, in their order."""
        return AXES if self.nodes_per_unit is None else (*AXES, NODES)

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """Reads a `.npz` machine file; ValueError with one sentence if it is not one."""
        try:
            # numpy leaves a file it cannot read open, so it is opened here
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                missing = [name for name in (*AXES, "service_time_s") if name not in file]
                arrays = {name: file[name] for name in (*AXES, *_TIMES, NODES) if name in file}
        except FileNotFoundError:
            raise ValueError(
                f"there is no machine file {str(path)!r}; rrl-profile measures one from a server"
            ) from None
        except UNREADABLE:
            raise ValueError(
                f"cannot read machine file {str(path)!r}: expected an .npz of plain arrays"
            ) from None
        if missing:
            raise ValueError(
                f"machine file {str(path)!r} lacks {', '.join(missing)}; "
                f"it needs the arrays {', '.join((*AXES, 'service_time_s'))}"
            )
        try:
            return cls(**arrays)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}: {error}") from None

    def save(self, path: str | Path) -> None:
        arrays = {name: getattr(self, name) for name in (*AXES, *_TIMES, NODES)}
        with written_whole(Path(path)) as file:  # np.savez given a name would add a suffix to it
            np.savez_compressed(file, **{name: array for name, array in arrays.items() if array is not None})

    @classmethod
    def invent(
        cls,
        seed: int = 0,
        *,
        cores: int = 10,
        work_s: float = 0.25,
        batching_gain: float = 0.5,
        roughness: float = 0.15,
        inter_op_threads: Sequence[int] = range(1, 11),
        intra_op_threads: Sequence[int] = range(1, 11),
        busy_instances: Sequence[int] = range(1, 11),
        batch_size: Sequence[int] = (1, 2, 4, 8, 16, 32),
    ) -> Machine:
        """A machine of `cores` cores whose model needs `work_s` seconds of one core a request.

            S = work_s · P(i, a) · O(n·i·a) · M(n) · G(b) · exp(roughness · F(i, a, n, b))

            P = (σ + (1 - σ)/a) · (1 - φ + φ/i)   Amdahl: serial fraction σ, fraction φ in parallel branches
            O = max(1, n·i·a/cores)^ω             over-subscription: threads take turns, at a loss
            M = 1 + μ·(n - 1)/cores               interference of neighbours (memory bandwidth, caches)
            G = g + (1 - g)·b                     batching: the share g = `batching_gain` is paid once a batch
            F                                     a smooth Gaussian random field over the values' logarithms

        `seed` draws σ in [0.05, 0.25], φ in [0.2, 0.7], ω in [1, 1.3], μ in [0.2, 1] and F.
        """
        if not 0.0 <= batching_gain < 1.0:
            raise ValueError(f"batching_gain must lie in [0, 1), got {batching_gain:g}")
        if work_s <= 0 or cores < 1 or roughness < 0:
            raise ValueError(
                "work_s and cores must be positive and roughness not negative, "
                f"got {work_s:g}, {cores}, {roughness:g}"
            )
        rng = np.random.default_rng(whole_seed(seed, below=None))
        sigma, phi, omega, mu = rng.uniform([0.05, 0.2, 1.0, 0.2], [0.25, 0.7, 1.3, 1.0])
        axes = [np.asarray(axis) for axis in (inter_op_threads, intra_op_threads, busy_instances, batch_size)]
        i, a, n, b = np.meshgrid(*(axis.astype(float) for axis in axes), indexing="ij")
        time_s = work_s * (sigma + (1 - sigma) / a) * (1 - phi + phi / i)
        time_s *= np.maximum(1.0, n * i * a / cores) ** omega * (1 + mu * (n - 1) / cores)
        time_s *= batching_gain + (1 - batching_gain) * b
        time_s *= np.exp(roughness * smooth_field(rng, np.log(np.stack([i, a, n, b], axis=-1))))
        return cls(axes[0], axes[1], axes[2], axes[3], time_s)

    def slower(self, factor: float) -> Machine:
        """The machine on which every batch takes `factor` times as long."""
        rested_s = None if self.rested_time_s is None else factor * self.rested_time_s
        return replace(self, service_time_s=factor * self.service_time_s, rested_time_s=rested_s)

    def of_unit(self, nodes: int) -> Machine:
        """The machine of one node whose service times are those of units of so many nodes."""
        axis = self.nodes_per_unit
        if axis is None:
            return self

        def of(times_s: np.ndarray) -> np.ndarray:
            return _interpolated_along(times_s, times_s.ndim - 1, axis, np.array([nodes]))[..., 0]

        rested_s = None if self.rested_time_s is None else of(self.rested_time_s)
        return replace(
            self, service_time_s=of(self.service_time_s), rested_time_s=rested_s, nodes_per_unit=None
        )

    def table(self, configuration: Configuration) -> np.ndarray:
        """(instances, max_batch_size) float64, read-only: [n-1, b-1] is S with n busy, of b requests.

        Knobs the configuration lacks count as 1. Between the grid's values ln(S) is interpolated linearly in
        ln(value), which is exact for power laws; outside the grid the value at its edge is taken.
        """
        value = configuration.get
        key = (
            value("inter_op_threads", 1),
            value("intra_op_threads", 1),
            value("instances", 1),
            value("max_batch_size", 1),
            value(NODES, 1),
        )
        if key not in self._tables:
            self._tables[key] = self._interpolated(*key)
        return self._tables[key]

    def rested_table(self, configuration: Configuration) -> np.ndarray | None:
        """(instances,) seconds of a request that finds its instance at rest, with 1 .. instances busy.

        None where that was not measured. Between the grid's values as in `table`.
        """
        if self.rested_time_s is None:
            return None
        axes = (self.inter_op_threads, self.intra_op_threads, self.busy_instances, np.ones(1, int))
        of_one = Machine(*axes, np.expand_dims(self.rested_time_s, 3), nodes_per_unit=self.nodes_per_unit)
        return of_one.table({**configuration, "max_batch_size": 1})[:, 0]

    def capacity_per_s(self, configuration: Configuration) -> float:
        """The rate from which a configuration is overloaded: max b·c/S[c, b]."""
        times_s = self.table(configuration)[-1]  # with all instances busy
        instances = configuration.get("instances", 1)
        return float(np.max(instances * np.arange(1, len(times_s) + 1) / times_s))

    def largest(self, knob: str) -> int | None:
        """The largest value of a knob that the table covers; None for a knob it does not depend on."""
        if knob == NODES and self.nodes_per_unit is None:
            return 1
        axis = {"instances": "busy_instances", "max_batch_size": "batch_size"}.get(knob, knob)
        return int(getattr(self, axis)[-1]) if axis in self.axes else None

    def _checked_times(self, name: str, axes: Sequence[str]) -> np.ndarray:
        times_s = np.asarray(getattr(self, name))
        shape = tuple(len(getattr(self, axis)) for axis in axes)
        if times_s.shape != shape:
            raise ValueError(
                f"machine table: {name} must have shape {shape}, one entry for each value of "
                f"{', '.join(axes)}, got {times_s.shape}"
            )
        if times_s.dtype.kind not in "fiu" or not np.all(np.isfinite(times_s) & (times_s > 0)):
            raise ValueError(
                f"machine table: every {name} must be a positive number of seconds; "
                "found NaN, infinite, non-positive or non-numeric entries"
            )
        return times_s.astype(np.float64)

    def _interpolated(
        self, inter: int, intra: int, instances: int, max_batch_size: int, nodes: int
    ) -> np.ndarray:
        if min(inter, intra, instances, max_batch_size, nodes) < 1:
            raise ValueError(
                "threads, instances, batch size and nodes must be at least 1, got "
                f"{inter=}, {intra=}, {instances=}, {max_batch_size=}, {nodes=}"
            )
        times_s = self.service_time_s
        wanted = [[inter], [intra], range(1, instances + 1), range(1, max_batch_size + 1), [nodes]]
        for k, name in enumerate(self.axes):
            times_s = _interpolated_along(times_s, k, getattr(self, name), np.asarray(wanted[k]))
        table = np.ascontiguousarray(times_s.reshape(instances, max_batch_size))
        table.setflags(write=False)
        return table


def _checked_axis(name: str, axis: np.ndarray) -> np.ndarray:
    if axis.ndim != 1 or axis.size == 0 or axis.dtype.kind not in "iu":
        raise ValueError(
            f"machine table: {name} must be a one-dimensional array of integers, "
            f"got shape {axis.shape} of {axis.dtype}"
        )
    if axis[0] < 1 or np.any(axis[1:] <= axis[:-1]):
        raise ValueError(
            f"machine table: {name} must ascend from at least 1 without repeats, got {axis.tolist()}"
        )
    return axis.astype(np.int64)


def _interpolated_along(times_s: np.ndarray, k: int, grid: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`times_s` at `values` of its axis k: ln(time) linear in ln(value) inside the grid, held outside."""
    position = np.interp(np.log(values), np.log(grid), np.arange(len(grid)))
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, len(grid) - 1)
    shape = [1] * times_s.ndim
    shape[k] = len(values)
    weight = (position - low).reshape(shape)
    # A weighted geometric mean: with weight 0 it gives the grid's own value to the last bit.
    return np.asarray(
        np.take(times_s, low, axis=k) ** (1 - weight) * np.take(times_s, high, axis=k) ** weight
    )


def smooth_field(rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
    """A Gaussian random field (squared-exponential kernel) at points (..., axes): a sum of random cosines."""
    waves = rng.normal(0.0, 1.0 / _FIELD_LENGTH, (points.shape[-1], _FIELD_WAVES))
    phases = rng.uniform(0.0, 2 * np.pi, _FIELD_WAVES)
    return np.sqrt(2.0 / _FIELD_WAVES) * np.cos(points @ waves + phases).sum(axis=-1)
