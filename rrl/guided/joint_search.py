"""Finds the promising configurations of a joint grid that is too large to look at one by one.

The grid is the product of the models' own. Each model's own configurations are screened beside its
neighbours as they are now. Joint ones are then made of a short list of each model.

| symbol | here | meaning |
|---|---|---|
| L_m | `_ShortList.numbers` | of model m: the cheapest, the cheapest hoped for, some of each thread count |
| J_m(s) | `log_ms` | ln of its mean latency, times s times as long, at some s; linear in ln s between |
| g_m(c) | `JointBelief.log_slower` | what the others in c slow model m by |
| Σ w_m J_m(e^g) | `_expected` | what is expected of the joint configuration c |

Where threads count, J_m is the p95, and what is expected are the threads of those that keep the limit.

All combinations of the lists are compared where these are at most `MOST_COMBINED`. Beyond that a beam of the
best is improved in turns: for each model, all of its list, the others as they are in the beam.
So the time of a decision grows with the sum of the models' grids, and not with their product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rrl.belief.belief import Belief, Predicted
from rrl.belief.several_models.joint import NO_LOG_COST, JointBelief
from rrl.guided.candidates import cheapest_first, without_vain_delays
from rrl.objective import LeastResources, PredictedIntervals

LIKELY, HOPED, OF_EACH_THREADS = 10, 5, 2  # of a short list
SCREENED = 60  # configurations of a model whose uncertainty is asked for
SCALES = np.array([0.6, 1.0, 1.6, 2.6])  # s
MOST_COMBINED = 1500
BEAM, ROUNDS = 48, 2


class _ShortList(NamedTuple):
    """The promising configurations of one model: L of them."""

    numbers: np.ndarray  # (L,)
    log_ms: np.ndarray  # (L, scales)
    threads: np.ndarray  # (L,)
    fail: np.ndarray  # (L,) the share expected to
    sd: np.ndarray  # (L,) of ln of the service time that matters, beside what is in force

    def at(self, index: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
        """(K,) J_m in ms of these, with service times so many times as long."""
        logs = np.log(SCALES)
        place = np.clip(np.interp(log_scale, logs, np.arange(len(logs))), 0, len(logs) - 1)
        low = np.minimum(place.astype(int), len(logs) - 2)
        rise = self.log_ms[index, low + 1] - self.log_ms[index, low]
        return np.asarray(np.exp(np.minimum(self.log_ms[index, low] + (place - low) * rise, 40.0)))


class JointSearch:
    """Looks for the configurations of a joint grid that are worth a closer look."""

    def __init__(self, belief: JointBelief) -> None:
        self._belief = belief
        objective = belief.cost.objective
        self._limit = objective if isinstance(objective, LeastResources) else None
        self._allowed = np.ones(0, dtype=bool)  # (size,) those that are looked for

    def promising(self, in_force: int, count: int, allowed: np.ndarray) -> np.ndarray:
        """(K,) at most so many: the cheapest allowed, the cheapest hoped for, and what is in force."""
        self._allowed = allowed
        joint = self._belief.joint
        now = joint.parts(np.array([in_force]))[0]
        lists = [self._short_list(k, now) for k in range(len(now))]
        index = self._combined(lists, now)
        numbers = joint.joined(_parts(lists, index))
        orders = [self._cheapest_first(lists, index, (hoped,))[:count] for hoped in (False, True)]
        both = np.stack(orders, axis=1).ravel()
        _, first = np.unique(both, return_index=True)
        found = numbers[both[np.sort(first)][: count - 1]]
        found = found[allowed[found]]
        return found if in_force in found else np.append(found, in_force)

    def _short_list(self, k: int, now: np.ndarray) -> _ShortList:
        belief = self._belief
        member = belief.expected[k]
        space = member.space
        if not member.known:
            return self._unknown_list(member, int(now[k]))
        numbers = np.flatnonzero(member.replay.allowed)
        numbers = without_vain_delays(member, int(now[k]), numbers)
        parts = np.repeat(now[None], len(numbers), axis=0)
        parts[:, k] = numbers
        scale = np.exp(belief.log_slower(parts)[:, k])
        screened = member.screened(numbers, scale)
        order = np.lexsort((screened.p95_ms, screened.cost))
        best = order[:SCREENED]
        sd = member.standard_deviations(numbers[best], int(now[k]))
        hoped_costs = member.screened(numbers[best], scale[best] * np.exp(-sd)).cost
        hoped = best[np.argsort(hoped_costs, kind="stable")]
        threads = space.threads[numbers[order]]
        least = [order[threads == each][:OF_EACH_THREADS] for each in np.unique(threads)]
        chosen = np.concatenate([order[:LIKELY], hoped[:HOPED], *least])
        own = np.unique(np.append(numbers[chosen], now[k]))
        sds = np.where(own == now[k], 0.0, member.standard_deviations(own, int(now[k])))
        at_scales = [member.screened(own, np.full(len(own), each)) for each in SCALES]
        log_ms = np.log([each.p95_ms if self._limit else each.cost for each in at_scales]).T
        return _ShortList(own, log_ms, space.threads[own], member.failures.of(own), sds)

    def _unknown_list(self, member: Belief, now: int) -> _ShortList:
        """Of a model of which nothing was answered: as it is.

        Where threads count, also with the fewest of them, unless requests came that wait or failed.
        """
        numbers, threads = np.array([now]), member.space.threads
        if self._limit and not member.intervals and threads[now] > threads.min():
            least = np.flatnonzero(threads == threads.min())
            numbers = np.append(numbers, least[np.argmin(member.space.distances(now)[least])])
        none = np.zeros(len(numbers))
        log_ms = np.full((len(numbers), len(SCALES)), NO_LOG_COST)
        return _ShortList(numbers, log_ms, threads[numbers], none, none)

    def _combined(self, lists: list[_ShortList], now: np.ndarray) -> np.ndarray:
        """(K, M) positions in the lists, of all combinations or of a beam of the best."""
        lengths = [len(each.numbers) for each in lists]
        if math.prod(lengths) <= MOST_COMBINED:
            return np.stack(np.unravel_index(np.arange(math.prod(lengths)), lengths), axis=1)
        present = [int(np.flatnonzero(each.numbers == now[k])[0]) for k, each in enumerate(lists)]
        beam = np.array([present])
        for _ in range(ROUNDS):
            for k, length in enumerate(lengths):
                wider = np.repeat(beam, length, axis=0)
                wider[:, k] = np.tile(np.arange(length), len(beam))
                wider = np.unique(wider, axis=0)
                beam = wider[self._cheapest_first(lists, wider, (False, True))[:BEAM]]
        return np.unique(np.vstack([beam, [present]]), axis=0)

    def _cheapest_first(
        self, lists: list[_ShortList], index: np.ndarray, hopes: tuple[bool, ...]
    ) -> np.ndarray:
        """(K,) positions by the lower of what is expected, and hoped for where that is asked for, too."""
        found = [self._expected(lists, index, hoped) for hoped in hopes]
        costs, p95_ms = (
            np.min(each, axis=0) for each in ([f.cost for f in found], [f.p95_ms for f in found])
        )
        lowest = Predicted(costs, p95_ms)
        threads = _threads(lists, index).sum(axis=1)
        return cheapest_first(self._belief.cost.objective, lowest, threads)

    def _expected(self, lists: list[_ShortList], index: np.ndarray, hoped: bool) -> Predicted:
        """(K,) of joint configurations, in ms or threads; infinite for what is not allowed."""
        belief = self._belief
        parts = _parts(lists, index)
        g = belief.log_slower(parts)
        logs = [g[:, k] - hoped * each.sd[index[:, k]] for k, each in enumerate(lists)]
        ms = np.stack([each.at(index[:, k], logs[k]) for k, each in enumerate(lists)], axis=1)
        costs = ms @ belief.weights
        if self._limit:
            fail = np.stack([each.fail[index[:, k]] for k, each in enumerate(lists)], axis=1)
            in_threads = self._limit.costs(PredictedIntervals(ms, ms, _threads(lists, index), fail))
            costs = belief.cost.combined(in_threads, belief.weights)
        costs = np.where(self._allowed[belief.joint.joined(parts)], costs, np.inf)
        return Predicted(costs, ms.max(axis=1))


def _parts(lists: list[_ShortList], index: np.ndarray) -> np.ndarray:
    """(K, M) numbers of the models' own configurations."""
    return np.stack([each.numbers[index[:, k]] for k, each in enumerate(lists)], axis=1)


def _threads(lists: list[_ShortList], index: np.ndarray) -> np.ndarray:
    """(K, M) of the models' own configurations."""
    return np.stack([each.threads[index[:, k]] for k, each in enumerate(lists)], axis=1)
