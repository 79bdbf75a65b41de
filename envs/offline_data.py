"""`rrl-export`: the journals of runs as a data set of offline learning, in the format of Minari.

An episode is a stretch of a run's intervals in which each begins where the one before ended. A run is more
than one episode where it was broken off and resumed. Episodes are truncated at their ends, never terminated.

An interval without a cost is no step, and ends the episode. Such is one with a gap, one in which nothing was
completed, and one in which the target kept another configuration than the one that was asked for.

| of a step | is |
|---|---|
| observation, action | as in `ServingEnv`; the action is what was in force, whoever chose it |
| reward | minus the objective's cost |
| info `has_cost` | true of every step; false of what is from before |
| info `learned` | whether the run's agent learned from it |
| info `kind`, `decision` | baseline, tune, validation or wait; and who decided: agent, rollback, hold, ... |
| other infos | of the interval's measurement; NaN where it does not tell |

As in Minari, observations and infos have one entry more than there are steps: the first is from before.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import UseAppendAction

from envs.serving import action_space_of, observation_space_of
from rrl.journal import folder_of, read
from rrl.records import Header, Record
from serving_adapter.flags.parsing import fail, in_a_sentence, parse
from serving_adapter.standard_streams import say

FROM_BEFORE: dict[str, Any] = {
    "kind": "before",
    "decision": "before",
    "has_cost": False,
    "learned": False,
    "arrivals": 0,
    "completions": 0,
    "failures": 0,
    "duration_s": math.nan,
    "latency_mean_ms": math.nan,
    "latency_p95_ms": math.nan,
    "wall_time_s": math.nan,
}
"""The infos by name, with those of an episode's first observation."""


@dataclass(frozen=True)
class ExportOptions:
    """Writes the journals of runs as one data set in Minari's format (HDF5), for offline learning."""

    dataset: str
    """The data set's name in Minari, (NAMESPACE/)NAME-vN, e.g. rrl/triton-minilm-v0."""
    run: UseAppendAction[tuple[Path, ...]] = ()
    """Folder of a run; again for more runs, of one grid and objective."""
    into: Path | None = None
    """Folder of data sets (default: Minari's own, MINARI_DATASETS_PATH or ~/.minari/datasets)."""
    author: str | None = None
    """Who ran them."""

    def __post_init__(self) -> None:
        if not self.run:
            raise ValueError("give the folder of a run with --run, as rrl-tune --out left it")
        if not re.fullmatch(r"(?:[-\w]+/)*[-\w]+-v\d+", self.dataset):
            raise ValueError(
                f"--dataset must be NAME-vN or NAMESPACE/NAME-vN, as in rrl/triton-v0, got {self.dataset!r}"
            )


def main(argv: list[str] | None = None) -> None:
    options = parse(ExportOptions, argv)
    try:
        steps, episodes = export(options)
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    say(f"{options.dataset}: {steps} steps in {episodes} episodes")


def export(options: ExportOptions) -> tuple[int, int]:
    """Writes the data set. Returns its steps and episodes; ValueError for runs of different grids."""
    runs = [read(folder_of(run)) for run in options.run]
    header = _shared_header(options.run, [each for each, _ in runs])
    cut = [episode for _, records in runs for episode in episodes_of(records)]
    if not cut:
        raise ValueError("the journals hold no interval with a cost yet")
    if options.into is not None:
        os.environ["MINARI_DATASETS_PATH"] = str(options.into.absolute())  # It takes no relative one.
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise ValueError("rrl-export needs Minari: pip install 'minari[hdf5]'") from None
    with _whole_or_not_at_all(options), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It recommends what a run does not know.
        dataset = minari.create_dataset_from_buffers(
            options.dataset,
            [EpisodeBuffer(**arrays(episode)) for episode in cut],
            action_space=action_space_of(header.space),
            observation_space=observation_space_of(header.space),
            algorithm_name=", ".join(sorted({each.agent for each, _ in runs})),
            author=options.author,
            description=_description(header),
        )
        dataset.storage.update_metadata({"knobs": json.dumps(header.space.to_json())})
    return sum(map(len, cut)), len(cut)


@contextmanager
def _whole_or_not_at_all(options: ExportOptions) -> Iterator[None]:
    """Takes away what was written where it cannot all be: Minari refuses a name that is there already."""
    from minari.storage.datasets_root_dir import get_dataset_path

    folder = Path(get_dataset_path(options.dataset))
    was_there = folder.exists()
    try:
        yield
    except BaseException as error:
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | RuntimeError):  # h5py raises either where the disk is full
            told = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
            raise ValueError(
                f"the data set cannot be written to {folder}: {told}; make room there, or give another --into"
            ) from error
        raise


def episodes_of(records: Sequence[Record]) -> Iterator[list[Record]]:
    """The records with a cost, cut where one does not begin where the one before it ended."""
    episode: list[Record] = []
    for record in records:
        t = record.transition
        is_step = record.was_in_force and t.has_cost
        follows = bool(episode) and np.array_equal(episode[-1].transition.next_observation, t.observation)
        if episode and not (is_step and follows):
            yield episode
            episode = []
        if is_step:
            episode.append(record)
    if episode:
        yield episode


def arrays(episode: Sequence[Record]) -> dict[str, Any]:
    """An episode of n steps: (n + 1, fields) observations, (n, knobs) actions, (n,) of the others."""
    transitions = [record.transition for record in episode]
    first, *_ = transitions
    infos = [FROM_BEFORE, *map(_info, episode)]
    last = len(episode) - 1
    return {
        "observations": np.stack([first.observation, *(t.next_observation for t in transitions)]),
        "actions": np.stack([t.action for t in transitions]),
        "rewards": np.array([-t.cost for t in transitions]),
        "terminations": np.zeros(len(episode), bool),
        "truncations": np.arange(len(episode)) == last,
        "infos": {name: [info[name] for info in infos] for name in FROM_BEFORE},
    }


def _info(record: Record) -> dict[str, Any]:
    measurement = record.transition.measurement
    return {
        "kind": record.kind,
        "decision": record.decision,
        "has_cost": record.transition.has_cost,
        "learned": record.learned,
        "arrivals": measurement.arrivals,
        "completions": measurement.completions,
        "failures": measurement.failures,
        "duration_s": measurement.duration_s,
        "latency_mean_ms": measurement.latency.mean_ms,
        "latency_p95_ms": measurement.latency.p95_ms,
        "wall_time_s": record.wall_time_s,
    }


def _shared_header(folders: Sequence[Path], headers: Sequence[Header]) -> Header:
    """The first run's; ValueError unless the others are of its grid and objective."""
    first, *others = headers
    for folder, other in zip(folders[1:], others, strict=True):
        for name, theirs, ours in (
            ("grid", str(other.space), str(first.space)),
            ("objective", other.objective, first.objective),
            ("p95 limit", other.slo_p95_ms, first.slo_p95_ms),
        ):
            if theirs != ours:
                raise ValueError(
                    f"{folder} is a run of another {name}, {theirs}, not {ours}: export it alone"
                )
    return first


def _description(header: Header) -> str:
    server = header.server or header.target
    limit = "" if header.slo_p95_ms is None else f" with a p95 limit of {header.slo_p95_ms:g} ms"
    return (
        f"Intervals of rrl-tune on {header.model} of {server}: {header.space}; objective {header.objective}"
        f"{limit}; an interval is {header.interval_s:g} s."
    )


if __name__ == "__main__":
    main()
