"""A change costs what users feel of it: processes that start, slower batches, and a queue."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guided.change_costs import BESIDE_A_START, NONE_YET, ChangeCosts
from rrl.guided.settings import GUIDED
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import LeastResources, MeanLatency, Objective
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 4], intra_op_threads=[1, 2])
ONE = SPACE.number({"instances": 1, "intra_op_threads": 1})
EVERYTHING = np.arange(len(SPACE))
IN_PLACE = frozenset({"instances"})
INTERVAL_S = 10.0
PRESENT_MS = 60.0


def change_costs(
    in_place: frozenset[str] | None = IN_PLACE, rate_per_s: float = 10.0, objective: Objective | None = None
) -> ChangeCosts:
    """One instance is in force, whose batches take 50 ms: it bears 20 requests a second."""
    objective = objective or MeanLatency()
    belief = Belief(SPACE, objective, cores=4)
    arrivals = round(INTERVAL_S * rate_per_s)
    rows = (ServiceTimes(1, 1, arrivals, 0.05 * arrivals),)
    latency = LatencySummary(PRESENT_MS)
    belief.learn(ONE, Measurement(INTERVAL_S, arrivals, arrivals, 0, latency, telemetry=rows))
    changes = ChangeCosts(Task(SPACE, objective, in_place=in_place), belief, GUIDED)
    changes.interval_s = INTERVAL_S
    return changes


def of(costs: np.ndarray, instances: int, threads: int) -> float:
    return float(costs[SPACE.number({"instances": instances, "intra_op_threads": threads})])


def test_where_every_knob_changes_in_place_all_changes_cost_alike() -> None:
    changes = change_costs(in_place=None)
    assert not changes.exist
    costs = changes.cost(ONE, EVERYTHING, PRESENT_MS)
    assert costs[ONE] == 0.0
    np.testing.assert_allclose(np.delete(costs, ONE), GUIDED.change_share * PRESENT_MS)


def test_new_instances_are_started_and_all_where_another_knob_changes() -> None:
    started = change_costs().processes_started(ONE, EVERYTHING)
    assert [of(started, n, 1) for n in (1, 2, 4)] == [0, 1, 3]
    assert [of(started, n, 2) for n in (1, 2, 4)] == [1, 2, 4]
    four = SPACE.number({"instances": 4, "intra_op_threads": 1})
    assert of(change_costs().processes_started(four, EVERYTHING), 2, 1) == 0


def test_before_the_first_interval_nothing_is_started() -> None:
    assert not change_costs().processes_started(NONE_YET, EVERYTHING).any()


def test_each_process_adds_the_time_in_which_batches_are_slower() -> None:
    """At half of the load that it bears there is no queue beside that."""
    costs = change_costs().cost(ONE, EVERYTHING, PRESENT_MS)
    each = (BESIDE_A_START - 1) * GUIDED.process_start_s / INTERVAL_S * PRESENT_MS
    any_change = GUIDED.change_share * PRESENT_MS
    assert of(costs, 2, 1) == pytest.approx(any_change + each)
    assert of(costs, 4, 2) == pytest.approx(any_change + 4 * each)


def test_under_a_load_that_is_hardly_borne_a_queue_is_added() -> None:
    light, heavy = (change_costs(rate_per_s=rate).cost(ONE, EVERYTHING, PRESENT_MS) for rate in (10.0, 18.0))
    # Beside a start it bears 20 / 1.8 = 11.1 a second. Of 18 a second 6.2 wait after 0.9 s.
    queued = (18.0 - 20.0 / BESIDE_A_START) * GUIDED.process_start_s
    least_ms = 1e3 * queued * GUIDED.process_start_s / 2 / (18.0 * INTERVAL_S)
    assert of(heavy, 2, 1) > of(light, 2, 1) + 0.9 * least_ms
    assert of(heavy, 1, 2) > of(light, 1, 2)
    assert of(heavy, 1, 1) == 0.0


def test_no_waiting_is_added_to_a_cost_that_is_no_time() -> None:
    heavy = change_costs(rate_per_s=18.0, objective=LeastResources(200.0)).cost(ONE, EVERYTHING, 2.0)
    each = (BESIDE_A_START - 1) * GUIDED.process_start_s / INTERVAL_S * 2.0
    assert of(heavy, 2, 1) == pytest.approx(GUIDED.change_share * 2.0 + each)


@pytest.mark.parametrize("in_place", [IN_PLACE, None])
def test_a_delay_is_not_changed_where_batches_are_of_one(in_place: frozenset[str] | None) -> None:
    space = ConfigurationSpace.of(instances=[1], max_batch_size=[1, 4], max_queue_delay_us=[0, 1000])
    belief = Belief(space, MeanLatency(), cores=4)
    changes = ChangeCosts(Task(space, in_place=in_place), belief, GUIDED)
    kept = changes.without_vain_delays(0, np.arange(len(space))).tolist()
    vain = space.number({"instances": 1, "max_batch_size": 1, "max_queue_delay_us": 1000})
    assert kept == [number for number in range(len(space)) if number != vain]
