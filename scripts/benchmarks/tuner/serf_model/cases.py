"""What `serf-model` measures, what six models predict of it, and how far off they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rrl.queueing.front_share import FrontShare
from rrl.queueing.interference import Queue, predict
from rrl.queueing.start_up import predict_with_start_up

REACH_PERCENT, REACH_P90_PERCENT = 4.0, 10.0
LARGEST_SLOWNESS = 3.0  # of a run over its profiles: further off, the two have nothing in common
SERF, START_UP, OURS = Queue.MD_INTERF_C.value, "start-up", "start-up, front's share"


@dataclass(frozen=True)
class LightProfile:
    """One number of threads, with n = 1 .. c requests in service all the time."""

    warm_s: np.ndarray  # (c,) mean service time where another request always waits
    warm_per_s: np.ndarray  # (c,) requests per second meanwhile
    rested_s: np.ndarray  # (c,) mean service time of n requests at once after a rest
    rested_per_s: np.ndarray  # (c,)
    cpu_s: tuple[float, ...]  # processor seconds a request, of each other process on the model's cores

    def between(self, other: LightProfile) -> LightProfile:
        """The mean of two profiles, taken before and after a run."""
        return LightProfile(
            (self.warm_s + other.warm_s) / 2,
            (self.warm_per_s + other.warm_per_s) / 2,
            (self.rested_s + other.rested_s) / 2,
            (self.rested_per_s + other.rested_per_s) / 2,
            tuple((a + b) / 2 for a, b in zip(self.cpu_s, other.cpu_s, strict=True)),
        )

    def slower(self, factor: float) -> LightProfile:
        """The same on a machine on which service takes `factor` times as long."""
        return LightProfile(
            factor * self.warm_s, self.warm_per_s, factor * self.rested_s, self.rested_per_s, self.cpu_s
        )

    def to_json(self) -> dict[str, Any]:
        arrays = ("warm_s", "warm_per_s", "rested_s", "rested_per_s")
        return {name: getattr(self, name).tolist() for name in arrays} | {"cpu_s": list(self.cpu_s)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> LightProfile:
        warm_s, warm_per_s, rested_s, rested_per_s = (
            np.array(fields[name], dtype=float)
            for name in ("warm_s", "warm_per_s", "rested_s", "rested_per_s")
        )
        return cls(warm_s, warm_per_s, rested_s, rested_per_s, tuple(map(float, fields["cpu_s"])))


class MeasuredRun(NamedTuple):
    """One configuration under one load."""

    instances: int
    intra_op_threads: int
    share: float  # of the capacity: what was aimed at
    rate_per_s: float  # what came
    latency_ms: float  # means
    service_ms: float


class Means(NamedTuple):
    """What a model predicts."""

    service_s: float
    latency_s: float


Predict = Callable[[MeasuredRun, LightProfile, int], Means]
"""What is predicted of a run from a profile, on so many cores that the model may use."""


def _by(queue: Queue) -> Predict:
    """SERF's model or a simpler one, from what n requests take that are always in service (section IV-B)."""

    def predicted(ran: MeasuredRun, profile: LightProfile, cores: int) -> Means:
        found = predict(profile.warm_s[None], np.array([ran.instances]), ran.rate_per_s, queue)
        return Means(float(found.mean_service_s[0]), float(found.mean_latency_s[0]))

    return predicted


def _by_start_up(ran: MeasuredRun, profile: LightProfile, cores: int) -> Means:
    found = predict_with_start_up(profile.warm_s, profile.rested_s, ran.rate_per_s)
    return Means(found.mean_service_s, found.mean_latency_s)


def _by_start_up_and_share(ran: MeasuredRun, profile: LightProfile, cores: int) -> Means:
    """The profile's times without the front's share at the profile's rates, but with that at the run's."""
    share = FrontShare(cores, ran.intra_op_threads, profile.cpu_s)
    warm_s, rested_s = (
        share.beside(share.quiet(times_s, rates_per_s), ran.rate_per_s)
        for times_s, rates_per_s in (
            (profile.warm_s, profile.warm_per_s),
            (profile.rested_s, profile.rested_per_s),
        )
    )
    found = predict_with_start_up(warm_s, rested_s, ran.rate_per_s)
    return Means(found.mean_service_s, found.mean_latency_s)


MODELS: dict[str, Predict] = {
    **{queue.value: _by(queue) for queue in Queue},
    START_UP: _by_start_up,
    OURS: _by_start_up_and_share,
}


class Case(NamedTuple):
    """A run, and what is predicted of its mean latency."""

    run: MeasuredRun
    raw_ms: Mapping[str, float]
    adjusted_ms: Mapping[str, float]

    @classmethod
    def of(cls, ran: MeasuredRun, profile: LightProfile, cores: int) -> Case:
        slower = {name: slowness(ran, profile, cores, MODELS[name]) for name in (SERF, START_UP, OURS)}
        adjusted = {name: profile.slower(slower.get(name, slower[SERF])) for name in MODELS}
        return cls(
            ran,
            {name: 1e3 * model(ran, profile, cores).latency_s for name, model in MODELS.items()},
            {name: 1e3 * model(ran, adjusted[name], cores).latency_s for name, model in MODELS.items()},
        )

    def raw_percent(self, model: str = OURS) -> float:
        """Above zero where the prediction is too long."""
        return 100 * (self.raw_ms[model] / self.run.latency_ms - 1)

    def adjusted_percent(self, model: str = OURS) -> float:
        """The same with the service times scaled to the run's own mean."""
        return 100 * (self.adjusted_ms[model] / self.run.latency_ms - 1)


def slowness(ran: MeasuredRun, profile: LightProfile, cores: int, model: Predict) -> float:
    """How many times longer service took in the run than when it was profiled, by bisection of its logarithm.

    No plain quotient, since a slower machine also has more requests in service, which slows it further.
    """
    low, high = np.log(LARGEST_SLOWNESS) * np.array([-1.0, 1.0])
    while high - low > 1e-6:
        middle = (low + high) / 2
        mean_s = model(ran, profile.slower(float(np.exp(middle))), cores).service_s
        low, high = (middle, high) if 1e3 * mean_s < ran.service_ms else (low, middle)
    return float(np.exp(low))


def summary(cases: Sequence[Case]) -> list[str]:
    """The errors' size by model, and the sign of ours by case."""
    lines = [f"{'model':24}  raw: mean    p90   signed   adjusted: mean    p90   signed"]
    for model in MODELS:
        raw, adjusted = (_errors(cases, model, is_adjusted) for is_adjusted in (False, True))
        lines.append(
            f"{model:24} {_mean(raw):9.1f} % {_p90(raw):4.1f} % {raw.mean():+6.1f} %"
            f" {_mean(adjusted):14.1f} % {_p90(adjusted):4.1f} % {adjusted.mean():+6.1f} %"
        )
    shares = sorted({case.run.share for case in cases})
    lines.append("signed errors of ours in %, raw / adjusted, by share of the capacity:")
    lines.append("instances x threads" + "".join(f"{share:>16g}" for share in shares))
    by_configuration: dict[tuple[int, int], list[Case]] = {}
    for case in cases:
        by_configuration.setdefault((case.run.instances, case.run.intra_op_threads), []).append(case)
    for (instances, threads), own in by_configuration.items():
        cells = (f"{case.raw_percent():+7.1f} /{case.adjusted_percent():+7.1f}" for case in own)
        lines.append(f"{instances:9} x {threads:<7}" + "".join(cells))
    return lines


def outcome(cases: Sequence[Case]) -> dict[str, Any]:
    """The raw error of ours is the figure, as only that is a prediction. Beside it stands SERF's own."""
    raw, adjusted = (_errors(cases, OURS, is_adjusted) for is_adjusted in (False, True))
    printed = _errors(cases, SERF, is_adjusted=False)
    return {
        "value": round(_mean(raw), 2),
        "unit": "% mean error of the predicted mean latency",
        "peer": REACH_PERCENT,
        "ratio": round(_mean(raw) / REACH_PERCENT, 3),
        "reach": REACH_PERCENT,
        "holds": _mean(raw) <= REACH_PERCENT and _p90(raw) < REACH_P90_PERCENT,
        "p90_percent": round(_p90(raw), 2),
        "signed_percent": round(float(raw.mean()), 2),
        "adjusted_percent": round(_mean(adjusted), 2),
        "adjusted_p90_percent": round(_p90(adjusted), 2),
        "adjusted_signed_percent": round(float(adjusted.mean()), 2),
        "without_terms_percent": round(_mean(printed), 2),
        "without_terms_p90_percent": round(_p90(printed), 2),
        "cases": len(cases),
    }


def _errors(cases: Sequence[Case], model: str, is_adjusted: bool) -> np.ndarray:
    """(cases,) with their sign, in %."""
    return np.array(
        [case.adjusted_percent(model) if is_adjusted else case.raw_percent(model) for case in cases]
    )


def _mean(errors: np.ndarray) -> float:
    return float(np.abs(errors).mean())


def _p90(errors: np.ndarray) -> float:
    return float(np.percentile(np.abs(errors), 90))
