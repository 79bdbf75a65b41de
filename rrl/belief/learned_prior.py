"""What is known of service times from many machines: a prior learned once, a file of a few kB.

    ln S / S_1 = w · φ(i, a, n, b; C) + f,    w ~ N(m, Σ) over machines of one kind

| symbol | here | meaning |
|---|---|---|
| φ | `features` | threads, batching, over-subscription and neighbours, by the number of cores C |
| m, Σ | `Kind.mean`, `Kind.factor` | mean of the machines' weights, and L with L Lᵀ their covariance |
| f | `Kind.field_sd` | what is left: smooth deviations, as of `service_time_process` |

`rrl-train --prior FILE` fits the kinds of `baselines.prior_learning` and writes them. The file here
is what it writes without further options. With `--machines` there is one more, of machines that `rrl-profile`
measured.

Every kind is a hypothesis among the generic ones, told apart from them by likelihood. A prior that replaced
them would be sure of what does not hold elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrl.queueing.machine import UNREADABLE, Machine
from serving_adapter.whole_files import written_whole

FILE = "learned_prior.npz"
UTILISATIONS = (0.4, 0.65, 0.9)  # η of the features' over-subscription
MAX_POINTS = 1500  # of a machine's table, by which its weights are fitted
RIDGE = 1e-3  # how much a machine's weights are held back where its table does not tell them


class Kind(NamedTuple):
    """Machines of one kind."""

    name: str
    mean: np.ndarray  # (F,) m
    factor: np.ndarray  # (F, F) L
    field_sd: float  # of ln S: what the features do not say
    cores: tuple[float, float]  # the fewest and the most: it says nothing of other machines


def features(points: np.ndarray, cores: float) -> np.ndarray:
    """(P, F) φ of points (P, 5 or more): i, a, c, n, b. What follows, as nodes, is not in it."""
    i, a, _, n, b = points[:, :5].T
    li, la, ln, lb = np.log(i), np.log(a), np.log(n), np.log(b)
    columns = [np.ones(len(points)), la, la**2, li, li**2, la * li, a / cores, i * a / cores]
    columns += [lb, lb**2, lb * la, lb * ln, ln, ln**2, ln * la, ln * li]
    columns += [(n - 1) / cores, np.log1p((n - 1) / cores), ((n - 1) / cores) ** 2]
    for utilisation in UTILISATIONS:
        over = np.log(np.maximum(1.0, n * (i * a) ** utilisation / cores))
        columns += [over, over**2]
    return np.stack(columns, axis=1)


def learned(name: str, machines: Iterable[tuple[Machine, int]]) -> Kind:
    """The prior of these machines of one kind, each with its number of cores."""
    weights, rests, sizes = [], [], []
    for machine, cores in machines:
        points, log_times = _table_of(machine)
        sizes.append(float(cores))
        known = features(points, cores)
        of_features = known.T @ known + RIDGE * len(points) * np.eye(known.shape[1])
        found = np.linalg.solve(of_features, known.T @ (log_times - log_times.mean()))
        weights.append(found)
        rests.append(np.mean((log_times - log_times.mean() - known @ found) ** 2))
    w = np.array(weights)
    covariance = np.cov(w.T) + 1e-8 * np.eye(w.shape[1])
    covariance[0, 0] += 9.0  # ln S_1 is anything
    return Kind(
        name,
        w.mean(axis=0),
        np.linalg.cholesky(covariance),
        float(np.sqrt(np.mean(rests))),
        (min(sizes), max(sizes)),
    )


def save(kinds: Iterable[Kind], path: str | Path) -> None:
    """Writes an .npz of plain arrays."""
    arrays: dict[str, np.ndarray] = {}
    for kind in kinds:
        lower = kind.factor[np.tril_indices(len(kind.factor))]
        arrays[kind.name] = np.concatenate([[kind.field_sd, *kind.cores], kind.mean, lower]).astype(
            np.float32
        )
    with written_whole(Path(path)) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load(path: str | Path) -> tuple[Kind, ...]:
    """Reads what `save` wrote; ValueError with one sentence for anything else."""
    count = features(np.ones((1, 5)), 1.0).shape[1]
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            return tuple(_kind(name, file[name].astype(float), count) for name in file.files)
    except UNREADABLE:
        raise ValueError(
            f"cannot read the prior {str(path)!r}: expected a file that rrl-train --prior wrote"
        ) from None


@cache
def shipped() -> tuple[Kind, ...]:
    """The prior that comes with the package."""
    with as_file(files("rrl.belief") / FILE) as path:
        return load(path) if path.is_file() else ()


def _kind(name: str, packed: np.ndarray, count: int) -> Kind:
    factor = np.zeros((count, count))
    field_sd, fewest, most = packed[:3].tolist()
    factor[np.tril_indices(count)] = packed[3 + count :]
    return Kind(name, packed[3 : 3 + count], factor, field_sd, (fewest, most))


def _table_of(machine: Machine) -> tuple[np.ndarray, np.ndarray]:
    """(P, 5) points of a machine's table, as many as `MAX_POINTS`, and their (P,) ln S; of one node."""
    machine = machine.of_unit(1)
    axes = (machine.inter_op_threads, machine.intra_op_threads, machine.busy_instances, machine.batch_size)
    i, a, n, b = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    points = np.stack([i, a, n, n, b], axis=1).astype(float)
    step = max(1, len(points) // MAX_POINTS) | 1  # An odd step meets all values of every axis.
    return points[::step], np.log(machine.service_time_s).ravel()[::step]
