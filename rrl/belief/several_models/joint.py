"""What is believed of several models on one machine: a belief of each, and what they slow each other by.

| symbol | here | meaning |
|---|---|---|
| c_m | `JointSpace.parts` | what model m has in the joint configuration c |
| g_m(c) | `log_slower` | ln of how many times as long batches of m take beside the others (`side_by_side`) |
| w_m | `weights` | the share of all requests that are those of model m |
| J_m | | what c_m costs the users of m, with its batches exp(g_m) times as long |

What the J_m come to together is in `joint_cost`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from rrl.belief.belief import Belief, Predicted, Work, while_kept
from rrl.belief.several_models.joint_cost import JointCost
from rrl.belief.several_models.joint_interval import seen_together
from rrl.belief.several_models.neighbours import Neighbours
from rrl.belief.several_models.side_by_side import expected_log_slower
from rrl.belief.several_models.silence import Silence, silences_after
from rrl.joint import JointSpace, by_model, is_joint
from rrl.measurement import Measurement
from rrl.objective import Objective
from rrl.seeding import Seed, whole_seed
from rrl.space import Configuration, ConfigurationSpace

NO_LOG_COST = -50.0  # of a model without requests
NO_COST = math.exp(NO_LOG_COST)


def belief_of(
    space: ConfigurationSpace,
    objective: Objective,
    cores: int | None = None,
    found: Configuration | None = None,
    concurrency: int | None = None,
) -> Belief | JointBelief:
    """The belief of one model, or of several by the names of the knobs. These share no closed loop."""
    if is_joint(space):
        return JointBelief(space, objective, cores, found)
    return Belief(space, objective, cores, found=found, concurrency=concurrency)


class JointBelief:
    """Is asked for joint configurations by their numbers, as a `Belief` is for those of one model."""

    def __init__(
        self,
        space: ConfigurationSpace,
        objective: Objective,
        cores: int | None = None,
        found: Configuration | None = None,
        seed: Seed = 0,
    ) -> None:
        """As `Belief`; knobs in `found` are named with their models, too."""
        self.joint = JointSpace.of(space)
        found_by_model = by_model(found or {})
        seed = whole_seed(seed)
        self.members = [
            Belief(
                member,
                objective,
                cores,
                seed=seed + k,
                found=found_by_model.get(model),
            )
            for k, (model, member) in enumerate(self.joint.members.items())
        ]
        self.expected = list(self.members)
        """Those to ask of the load to come: of a model that has fallen silent, a lower one."""
        self._silences = [Silence()] * len(self.members)
        spaces = [member.space for member in self.members]
        self._cores = float(cores or max(int(space.threads.max()) for space in spaces))
        self.neighbours = Neighbours(spaces)
        self.shares = np.full(len(self.members), 1 / len(self.members))
        """(M,) of the request-seconds of the last interval, those of each model."""
        self.cost = JointCost(objective)
        self._work: list[Work] = []
        self.model_error = _JointErrors(self)

    @property
    def known(self) -> bool:
        """False until a service time of any model is. A model that never had requests is of no account."""
        return any(member.known for member in self.members)

    @property
    def weights(self) -> np.ndarray:
        """(M,) of the requests expected next."""
        rates = self._rates_per_s
        return np.asarray(rates / rates.sum())

    def learn(self, number: int, measurement: Measurement) -> None:
        """Takes in an interval that has no gap, and what the models slowed each other by in it."""
        measured = [measurement.models.get(model) for model in self.joint.models]
        parts = self.joint.parts(np.array([number]))[0]
        work = self._all_work() if self.known else None
        if seen := seen_together(self.members, self._cores, parts, measured, work):
            self.neighbours.learn(seen)
        for k, (belief, each) in enumerate(zip(self.members, measured, strict=True)):
            past = self.neighbours.past(k)
            belief.slowed_by(past)
            if each is not None:
                belief.learn(int(parts[k]), each, past.get(belief.intervals + 1, 0.0))
            else:
                belief.passed(measurement.duration_s)
        seconds = np.array([_seconds(each) for each in measured])
        if seconds.sum() > 0:
            self.shares = seconds / seconds.sum()
        self.cost.whole.learn(measurement)
        self._silences = silences_after(self._silences, measured)
        expected = zip(self._silences, self.members, strict=True)
        self.expected = [silence.expected(member, self.cost.objective) for silence, member in expected]
        self._work = []

    def passed(self, duration_s: float) -> None:
        """In this time nothing came, or it is not known what did."""
        for member in self.members:
            member.passed(duration_s)

    def log_slower(self, parts: np.ndarray) -> np.ndarray:
        """(K, M) g of joint configurations given by the numbers of the models' own."""
        if not self.known:
            return np.zeros(parts.shape)
        work = [each.of(parts[:, k]) for k, each in enumerate(self._all_work())]
        return expected_log_slower(work, self.neighbours, self._cores)

    def ahead(self, numbers: np.ndarray, scale: np.ndarray) -> Predicted:
        """(K,) what is expected of the load to come, with each model's service times (K, M) as long."""
        parts = self.joint.parts(numbers)
        slower = scale * np.exp(self.log_slower(parts) + self._shared_speed)
        found = [
            member.ahead(parts[:, k], np.ascontiguousarray(slower[:, k]))
            if member.known
            else Predicted(self._cost_unknown(k, parts[:, k]), np.zeros(len(numbers)), 0.0)
            for k, member in enumerate(self.expected)
        ]
        costs = np.stack([each.cost for each in found], axis=1)
        p95_ms = np.stack([each.p95_ms for each in found], axis=1)
        felt = np.stack([np.broadcast_to(each.felt, len(numbers)) for each in found], axis=1)
        felt = np.average(felt, axis=1, weights=np.maximum(costs, 1e-9))
        return Predicted(self.cost.combined(costs, self.weights), self.cost.tail(p95_ms, self.weights), felt)

    def standard_deviations(self, numbers: np.ndarray, beside: int) -> np.ndarray:
        """(K, M) of ln of the service times that matter, such that all may move together.

        Errors of the models are independent, so their common cost moves by less than the sum of what they do.
        """
        parts, other = self.joint.parts(numbers), self.joint.parts(np.array([beside]))[0]
        sds = self.of_each(
            lambda k, member: member.standard_deviations(parts[:, k], int(other[k])), len(numbers)
        )
        sds = np.where(parts == other, 0.0, sds)
        weighed = self.shares * sds
        together = np.sqrt((weighed**2).sum(axis=1)) / np.maximum(weighed.sum(axis=1), 1e-12)
        return np.asarray(sds * together[:, None])

    def log_costs(
        self, numbers: np.ndarray, measurement: Measurement, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(K,), (K,) mean and sd of ln of what each would have cost in the interval learned last."""
        models = self.joint.models
        return self._log_costs(
            numbers,
            beside,
            lambda k: partial(self.members[k].log_costs, measurement=measurement.models[models[k]]),
        )

    def log_costs_ahead(
        self, numbers: np.ndarray, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of the load to come, on the machine as it is expected to be."""
        return self._log_costs(numbers, beside, lambda k: self.expected[k].log_costs_ahead)

    def log_costs_lately(
        self, numbers: np.ndarray, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of all that came lately, on the machine as it was, had each been in force all the time."""
        rates = np.array([m.mean_requests_per_s if m.known else 0.0 for m in self.members])
        return self._log_costs(
            numbers, beside, lambda k: self.members[k].log_costs_lately, rates / rates.sum()
        )

    def log_costs_kept(self, numbers: np.ndarray, beside: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The same while it is kept (`while_kept`)."""
        return while_kept(self.log_costs_ahead(numbers, beside), self.log_costs_lately(numbers, beside))

    def p95s_ms(self, numbers: np.ndarray, measurement: Measurement) -> np.ndarray:
        """(K,) the p95 of the slowest model, or of the whole, in the interval learned last."""
        parts = self.joint.parts(numbers)
        g = self.log_slower(parts)
        models = self.joint.models
        found = self.of_each(
            lambda k, member: member.p95s_ms(parts[:, k], measurement.models[models[k]], g[:, k]),
            len(numbers),
        )
        return self.cost.tail(found, self.weights)

    def of_each(
        self, asked: Callable[[int, Belief], np.ndarray], count: int, unknown: float = 0.0
    ) -> np.ndarray:
        """(K, M) what each model's belief answers; `unknown` of one that has had no requests."""
        answers = [
            asked(k, member) if member.known else np.full(count, unknown)
            for k, member in enumerate(self.expected)
        ]
        return np.stack(answers, axis=1)

    def capacities_per_s(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) the requests per s that each bears at most, in the models' present proportions."""
        spare = self._capacities_per_s(numbers) / np.maximum(self._rates_per_s, 1e-9)
        return np.asarray(spare.min(axis=1) * self._rates_per_s.sum() / self.cost.whole.visits)

    def bears(self, numbers: np.ndarray, share: float = 1.0) -> np.ndarray:
        """(K,) bool: under each, every model is expected to bear its load with this share of its capacity."""
        return np.asarray((share * self._capacities_per_s(numbers) > self._rates_per_s).all(axis=1))

    def _capacities_per_s(self, numbers: np.ndarray) -> np.ndarray:
        """(K, M)"""
        parts = self.joint.parts(numbers)
        g = self.log_slower(parts)
        return self.of_each(
            lambda k, member: member.capacities_per_s(parts[:, k], g[:, k]), len(numbers), math.inf
        )

    def _log_costs(
        self,
        numbers: np.ndarray,
        beside: int | None,
        asked: Callable[[int], Callable[..., tuple[np.ndarray, np.ndarray]]],
        weights: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """`asked` is what the belief of each model is asked.

        What is compared with comes first, so that each model's part of it is the first of its kind.
        """
        every = numbers if beside is None else np.concatenate([[beside], numbers])
        parts = self.joint.parts(every)
        g = self.log_slower(parts)
        others = [None if beside is None else int(n) for n in parts[0]]
        found = [
            asked(k)(parts[:, k], beside=others[k], log_slower=g[:, k])
            if member.known
            else (np.log(np.maximum(self._cost_unknown(k, parts[:, k]), NO_COST)), np.zeros(len(every)))
            for k, member in enumerate(self.members)
        ]
        means, sds = (np.stack(each, axis=1) for each in zip(*found, strict=True))
        m, sd = self.cost.of_logs(means, sds, self.weights if weights is None else weights)
        first = 0 if beside is None else 1
        return m[first:], sd[first:]

    def _cost_unknown(self, k: int, numbers: np.ndarray) -> np.ndarray:
        """(K,) of the own configurations of a model of which nothing was answered."""
        return self.cost.of_unknown(self.members[k].space.threads[numbers])

    def _all_work(self) -> list[Work]:
        if not self._work:
            self._work = [
                member.work() if member.known else Work.idle(member.replay.instances)
                for member in self.expected
            ]
        return self._work

    @property
    def _rates_per_s(self) -> np.ndarray:
        """(M,) requests per s expected."""
        return np.array([member.requests_per_s if member.known else 0.0 for member in self.expected])

    @property
    def _shared_speed(self) -> np.ndarray:
        """(M,) ln of how much slower the machine is, by all models, than each model alone says."""
        own = np.array([member.service_times.log_slowness_to_come for member in self.members])
        return np.asarray(own @ self.shares - own)


class _JointErrors:
    """The errors of the queueing models, as those of one."""

    def __init__(self, belief: JointBelief) -> None:
        self._belief = belief

    def standard_deviations(self, numbers: np.ndarray, beside: int) -> np.ndarray:
        """(K,) of ln of the joint cost, over that of one configuration, `beside`."""
        belief = self._belief
        parts, other = belief.joint.parts(numbers), belief.joint.parts(np.array([beside]))[0]
        sds = belief.of_each(
            lambda k, member: member.model_error.standard_deviations(parts[:, k], int(other[k])),
            len(numbers),
        )
        sds = np.where(parts == other, 0.0, sds)
        return np.asarray(np.sqrt(((belief.shares * sds) ** 2).sum(axis=1)))


def _seconds(measurement: Measurement | None) -> float:
    """Request-seconds."""
    if measurement is None or not measurement.latency.mean_ms > 0:
        return 0.0
    return measurement.completions * measurement.latency.mean_ms
