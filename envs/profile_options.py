"""What `rrl-profile` is told, and the grid of values that it measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from envs.target_space import default_space
from rrl.space import ConfigurationSpace
from serving_adapter.knob_limits import KNOBS, Limits, check

FILL_DELAY_US = 50_000  # a batch waits this long for its requests, which are all on their way
USUAL_BATCH_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class ProfileOptions:
    """Measures the service times of a live server and writes them as a machine file (.npz)."""

    target: str
    """HOST:PORT of the server's gRPC port. It should have no other load meanwhile."""
    out: Path
    """The machine file to write."""
    model: str | None = None
    """The model to profile; may be left out where the server has one."""
    instances: str = "1:4"
    """Numbers of busy instances to measure."""
    batch_sizes: str | None = None
    """Batch sizes to measure; default: 1,2,4,8, as far as the model takes them."""
    intra: str | None = None
    """Intra-op threads; default: powers of two up to the number of cores."""
    inter: str | None = None
    """Inter-op threads; default: as intra, or 1 where the model has no parallel branches."""
    requests_per_point: int = 20
    """Requests at least for each combination; more where the batches need them."""
    rested: bool = False
    """Also measures how long a request takes that finds its instance at rest. SERF's model then knows it."""
    size: int = 32
    """Length of the inputs' variable dimensions."""
    seed: int = 0
    """Of the inputs' values."""
    metrics_url: str | None = None
    """The server's metrics page, where it does not tell itself, and is no Triton at its usual ports."""
    control_key_file: Path | None = None
    """File with the key that changing the configuration needs (or set RRL_CONTROL_KEY)."""
    tls_ca: Path | None = None
    """PEM certificates to trust; makes the connection TLS."""

    def __post_init__(self) -> None:
        if self.requests_per_point < 1 or self.size < 1:
            raise ValueError("--requests-per-point and --size must be at least 1")
        if self.seed < 0:
            raise ValueError(f"--seed must be at least 0, got {self.seed}")


class Grid(NamedTuple):
    """The values to measure, each ascending."""

    inter_op_threads: tuple[int, ...]
    intra_op_threads: tuple[int, ...]
    instances: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    def configurations(self, knobs: Mapping[str, Limits]) -> Iterator[tuple[tuple[int, int], dict[str, int]]]:
        """((i, a), configuration) of every point; threads, the slowest to change, outermost."""
        for (i, inter), (a, intra), instances, batch_size in product(
            enumerate(self.inter_op_threads),
            enumerate(self.intra_op_threads),
            self.instances,
            self.batch_sizes,
        ):
            every = {
                "inter_op_threads": inter,
                "intra_op_threads": intra,
                "instances": instances,
                "max_batch_size": batch_size,
                "max_queue_delay_us": FILL_DELAY_US if batch_size > 1 else 0,
                "nodes_per_unit": 1,  # The table has no axis for it.
            }
            yield (i, a), {name: value for name, value in every.items() if name in knobs}


def make_grid(options: ProfileOptions, knobs: Mapping[str, Limits], cores: int | None) -> Grid:
    """The grid of the options on this target; ValueError for values that it cannot have."""
    default = {knob.name: knob.values for knob in default_space(knobs, cores).knobs}
    if "max_batch_size" in knobs:
        low, high = knobs["max_batch_size"]
        fitting = tuple(size for size in USUAL_BATCH_SIZES if low <= size <= high)
        default["max_batch_size"] = fitting or (low,)
    texts = {
        "inter_op_threads": options.inter,
        "intra_op_threads": options.intra,
        "instances": options.instances,
        "max_batch_size": options.batch_sizes,
    }
    axes = []
    for name, text in texts.items():
        values = default.get(name, (1,)) if text is None else _values(name, text)
        if name not in knobs and values != (1,):
            raise ValueError(f"the target has no knob {name}, so only {name}=1 can be profiled")
        for value in values:
            check({name: value}, knobs if name in knobs else KNOBS)
        axes.append(values)
    grid = Grid(*axes)
    if options.rested and 1 not in grid.batch_sizes:
        raise ValueError("--rested measures batches of 1: name 1 among --batch-sizes")
    return grid


def _values(name: str, text: str) -> tuple[int, ...]:
    return ConfigurationSpace.parse(f"{name}={text}").knobs[0].values
