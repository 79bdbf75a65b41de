"""Several models of one server tuned together: their knobs in one grid, their measurements in one.

A knob is named with its model, `resnet.instances`. What a joint measurement says of requests is of all of
them, and `Measurement.models` holds that of each model.

| symbol | here | meaning |
|---|---|---|
| c = (c_1 .. c_M) | | a joint configuration: one of each model |
| n_m | `parts` | the number of c_m in the grid of model m alone |
| n = Σ n_m · Π |C_k|, k > m | `JointSpace.joined` | the number of c in the joint grid |

| of a joint measurement | is |
|---|---|
| arrivals, completions, failures, backlog | the sum |
| means of latency, queue and service | the mean over all requests, so that each counts alike |
| percentiles | those of the model whose is the largest: a limit that they keep, each model keeps |

Where the models are parts of another one, as the steps of an ensemble are, all of this is of that one's own
requests (`as_whole`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from rrl.knobs import model_and_knob
from rrl.measurement import LatencySummary, Measurement
from rrl.space import Configuration, ConfigurationSpace, Knob


def of_models(configurations: Mapping[str, Configuration]) -> dict[str, int]:
    """The configurations of models as one, each knob named with its model."""
    return {
        f"{model}.{knob}": value for model, values in configurations.items() for knob, value in values.items()
    }


def by_model(configuration: Configuration) -> dict[str, dict[str, int]]:
    """The configuration of each model, its knobs named without the model: what `of_models` put together."""
    found: dict[str, dict[str, int]] = {}
    for name, value in configuration.items():
        model, knob = model_and_knob(name)
        found.setdefault(model, {})[knob] = value
    return found


def is_joint(space: ConfigurationSpace) -> bool:
    """True for a grid of several models."""
    return all(model_and_knob(name)[0] for name in space.names)


class JointSpace:
    """The grids of the models, and the joint one that they span."""

    def __init__(self, members: Mapping[str, ConfigurationSpace]) -> None:
        if not members:
            raise ValueError("a joint grid needs at least one model")
        self.members = dict(members)
        self.sizes = tuple(len(space) for space in self.members.values())

    @classmethod
    def of(cls, space: ConfigurationSpace) -> JointSpace:
        """The grids that a joint one is made of. ValueError for the grid of one model."""
        if not is_joint(space):
            raise ValueError(f"knobs of several models are named MODEL.knob, got {', '.join(space.names)}")
        knobs: dict[str, list[Knob]] = {}
        for knob in space.knobs:
            model, name = model_and_knob(knob.name)
            knobs.setdefault(model, []).append(Knob(name, knob.values))
        found = cls({model: ConfigurationSpace(tuple(each)) for model, each in knobs.items()})
        if found.space != space:
            raise ValueError(f"the knobs of a model must stand together, got {', '.join(space.names)}")
        return found

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.members)

    @cached_property
    def space(self) -> ConfigurationSpace:
        """The joint grid."""
        return ConfigurationSpace(
            tuple(
                Knob(f"{model}.{knob.name}", knob.values)
                for model, member in self.members.items()
                for knob in member.knobs
            )
        )

    def parts(self, numbers: np.ndarray) -> np.ndarray:
        """(K, M) the numbers of the models' own configurations, of (K,) joint ones."""
        return np.stack(np.unravel_index(numbers, self.sizes), axis=-1)

    def joined(self, parts: np.ndarray) -> np.ndarray:
        """(K,) the joint numbers of (K, M) numbers of the models' own configurations."""
        return np.asarray(np.ravel_multi_index(tuple(parts.T), self.sizes))


def together(models: Mapping[str, Measurement]) -> Measurement:
    """The joint measurement of models that were measured in one interval."""
    each = list(models.values())
    completions = [m.completions for m in each]
    batches = sum(m.completions / m.mean_batch_size for m in each if m.mean_batch_size > 0)
    gaps = {name: m.gap for name, m in models.items() if m.gap}
    return Measurement(
        duration_s=max(m.duration_s for m in each),
        arrivals=sum(m.arrivals for m in each),
        completions=sum(completions),
        failures=sum(m.failures for m in each),
        latency=_summary([m.latency for m in each], completions),
        queue=_summary([m.queue for m in each], completions),
        service=_summary([m.service for m in each], completions),
        mean_batch_size=sum(completions) / batches if batches else math.nan,
        backlog=sum(m.backlog for m in each),
        backlog_growth=sum(m.backlog_growth for m in each),
        cpu_utilisation=_largest(m.cpu_utilisation for m in each),
        gpu_utilisation=_largest(m.gpu_utilisation for m in each),
        aborted=next((m.aborted for m in each if m.aborted), ""),
        gap="; ".join(f"{name}: {gap}" for name, gap in gaps.items()),
        gap_by_others=bool(gaps) and all(models[name].gap_by_others for name in gaps),
        models=dict(models),
    )


def as_whole(own: Measurement, parts: Mapping[str, Measurement]) -> Measurement:
    """The measurement of a model that others are parts of: what is told of requests is its own.

    Of two gaps the one that others did not make is told.
    """
    joint = together(parts)
    told = min((m for m in (own, joint) if m.gap), key=lambda m: m.gap_by_others, default=own)
    return replace(
        own,
        mean_batch_size=joint.mean_batch_size,
        telemetry=(),
        gap=told.gap,
        gap_by_others=told.gap_by_others,
        models=dict(parts),
    )


def _summary(summaries: Sequence[LatencySummary], completions: Sequence[int]) -> LatencySummary:
    told = [(s, n) for s, n in zip(summaries, completions, strict=True) if n and math.isfinite(s.mean_ms)]
    if not told:
        return LatencySummary()
    mean_ms = sum(n * s.mean_ms for s, n in told) / sum(n for _, n in told)
    # NaN where a model does not tell it: nobody knows then that a limit is kept.
    percentiles = [max((s[k] for s, _ in told), key=_nan_first) for k in (1, 2, 3)]
    return LatencySummary(mean_ms, *percentiles)


def _nan_first(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _largest(values: Iterable[float]) -> float:
    """NaN where none is known."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)
