"""The rule: what is in force is worth nothing, and a change must pay for itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guided.acquisition import NODES, Acquisition, Contenders, improvement
from rrl.guided.settings import GUIDED
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import LeastResources, MeanLatency
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3, 4], max_batch_size=[1, 4])
SLOW = SPACE.number({"instances": 1, "max_batch_size": 1})
EVERYTHING = np.arange(len(SPACE))


def measured(rate_per_s: float = 40.0) -> Measurement:
    """One instance, batches of one that take 20 ms."""
    arrivals = round(5 * rate_per_s)
    return Measurement(
        duration_s=5.0,
        arrivals=arrivals,
        completions=arrivals,
        failures=0,
        latency=LatencySummary(60.0, 50.0, 150.0, 200.0),
        service=LatencySummary(20.0, 20.0, 20.0, 20.0),
        mean_batch_size=1.0,
        telemetry=(ServiceTimes(1, 1, arrivals, 0.02 * arrivals),),
    )


def compared(task: Task, in_force: int = SLOW) -> Contenders:
    belief = Belief(SPACE, MeanLatency(), cores=4)
    belief.learn(SLOW, measured())
    return Acquisition(belief, task.settles, GUIDED).contenders(EVERYTHING, in_force)


def test_what_is_in_force_is_worth_nothing_and_more_instances_something() -> None:
    found = compared(Task(SPACE))
    value = dict(zip(found.numbers.tolist(), found.value(GUIDED.horizon).tolist(), strict=True))
    assert value[SLOW] == pytest.approx(0.0, abs=1e-9)
    assert value[SPACE.number({"instances": 2, "max_batch_size": 1})] > 0


def test_a_change_costs_a_share_of_an_interval_and_more_where_it_settles() -> None:
    free, settling = compared(Task(SPACE)), compared(Task(SPACE, settles=True))
    others = free.numbers != SLOW
    assert free.change[others] == pytest.approx(GUIDED.change_share * free.present_cost)
    assert settling.change[others] == pytest.approx(GUIDED.settling_share * settling.present_cost)
    assert free.change[~others] == settling.change[~others] == 0


def test_the_value_is_improvement_over_the_horizon_less_what_trying_costs() -> None:
    found = compared(Task(SPACE))
    one = found._replace(
        improvement=np.array([2.0]),
        regret=np.array([3.0]),
        change=np.array([1.0]),
        better=np.array([0.75]),
    )
    assert one.value(10.0).tolist() == [pytest.approx(10 * 2.0 - 3.0 - 1.25 * 1.0)]


def test_what_is_surest_to_be_good_is_compared_beside_what_may_be_best() -> None:
    """On a large grid of which one configuration, an overloaded one, was seen."""
    space = ConfigurationSpace.of(
        instances=range(1, 11), inter_op_threads=range(1, 11), intra_op_threads=range(1, 11)
    )
    seen = space.number({"instances": 4, "inter_op_threads": 1, "intra_op_threads": 3})
    belief = Belief(space, MeanLatency())
    rows = tuple(ServiceTimes(busy, 1, 50, 50 * 0.05 * busy) for busy in (1, 2, 3, 4))
    belief.learn(seen, replace(measured(), telemetry=rows))
    found = Acquisition(belief, False, GUIDED)
    numbers = found.contenders(np.arange(len(space)), seen).numbers
    near = space.region(seen, 2.0)
    feared = belief.screened(near, np.exp(belief.standard_deviations(near, beside=seen))).cost
    assert set(near[np.argsort(feared, kind="stable")[:3]].tolist()) <= set(numbers.tolist())


def test_where_threads_count_the_fewest_that_keep_the_limit_are_compared_though_many_are_faster() -> None:
    tens = range(1, 11)
    space = ConfigurationSpace.of(instances=tens, inter_op_threads=tens, intra_op_threads=tens)
    seen = space.number({"instances": 4, "inter_op_threads": 1, "intra_op_threads": 3})
    fewest = []
    for limit_ms in (60.0, 600.0):
        belief = Belief(space, LeastResources(limit_ms), cores=10)
        for _ in range(3):
            belief.learn(seen, measured(20.0))
        found = Acquisition(belief, False, GUIDED).contenders(np.arange(len(space)), seen)
        fewest.append(int(space.threads[found.numbers[np.argmin(found.cost)]]))
    assert fewest[1] <= 3 < fewest[0] < space.threads[seen]


def test_the_probability_of_being_better_is_told_between_the_nodes() -> None:
    """ln of the cost is linear in z here: 2, 1 or 0.5 standard deviations above what is in force."""
    slope = np.array([1.0, 1.0, 1.0])
    above = np.array([2.0, 1.0, 0.5])
    costs = np.exp(above + NODES[:, None] * slope)
    _, better = improvement(costs, np.full(3, 1e-9), present=1.0)
    assert better == pytest.approx(ndtr(-above), abs=0.01)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        replace(GUIDED, horizon=0.0)
