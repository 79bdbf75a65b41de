"""What it costs a target's users to leave the configuration in force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rrl.agent import Task
from rrl.guided.change_costs import NONE_YET, ChangeCosts
from rrl.guided.latency_prior import LatencyPrior
from rrl.guided.service_times import ServiceTimeModel
from rrl.guided.settings import GUIDED, GuidedSettings
from rrl.space import ConfigurationSpace


def change_costs(
    space: ConfigurationSpace,
    in_place: set[str] | None,
    bears_per_s: list[float] | None = None,
    settings: GuidedSettings = GUIDED,
    excluded: frozenset[int] = frozenset(),
) -> ChangeCosts:
    task = Task(space, in_place=None if in_place is None else frozenset(in_place), excluded=excluded)
    prior = LatencyPrior(space, ServiceTimeModel(space), np.random.default_rng(0), excluded)
    prior.refresh()
    if bears_per_s is not None:
        prior.capacity_per_s = np.array(bears_per_s)
    return ChangeCosts(task, prior, settings)


@pytest.mark.parametrize(
    ("in_place", "exist"), [(None, False), ({"instances", "max_batch_size"}, False), ({"instances"}, True)]
)
def test_changes_cost_where_some_knob_loads_the_model_anew(in_place: set[str] | None, exist: bool) -> None:
    space = ConfigurationSpace.parse("instances=1:4,max_batch_size=1,2")
    costs = change_costs(space, in_place)
    assert costs.exist == exist
    assert costs.exist_from(0) == exist


def test_there_is_no_change_before_anything_is_in_force() -> None:
    space = ConfigurationSpace.parse("instances=1:4,max_batch_size=1,2")
    costs, everything = change_costs(space, {"instances"}), np.arange(len(space))
    assert costs.exist
    assert not costs.exist_from(NONE_YET)
    assert not costs.processes_started(NONE_YET, everything).any()
    assert not costs.waiting_ms(NONE_YET, everything, 100.0).any()
    delays = ConfigurationSpace.parse("max_batch_size=1,max_queue_delay_us=0,2000")
    numbers = np.arange(len(delays))
    assert change_costs(delays, set()).without_vain_delays(NONE_YET, numbers).tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("in_place", "configuration", "started"),
    [
        ({"instances"}, {"instances": 2, "max_batch_size": 1}, 0),
        ({"instances"}, {"instances": 1, "max_batch_size": 1}, 0),
        ({"instances"}, {"instances": 4, "max_batch_size": 1}, 2),
        ({"instances"}, {"instances": 2, "max_batch_size": 2}, 2),
        ({"instances"}, {"instances": 4, "max_batch_size": 2}, 4),
        ({"instances", "max_batch_size"}, {"instances": 4, "max_batch_size": 2}, 0),
        (None, {"instances": 4, "max_batch_size": 2}, 0),
    ],
)
def test_processes_count_that_a_change_starts_where_users_feel_that(
    in_place: set[str] | None, configuration: dict[str, int], started: int
) -> None:
    space = ConfigurationSpace.parse("instances=1:4,max_batch_size=1,2")
    in_force = space.number({"instances": 2, "max_batch_size": 1})
    numbers = np.array([space.number(configuration)])
    assert change_costs(space, in_place).processes_started(in_force, numbers).tolist() == [started]


@pytest.mark.parametrize(
    ("in_place", "rate_per_s", "excluded", "waits"),
    [
        ({"instances"}, 9.0, frozenset(), True),
        ({"instances"}, 4.0, frozenset(), False),  # less than half of what the present bears
        ({"instances"}, 9.0, frozenset({0}), False),  # nobody knows what the present bears
        (None, 9.0, frozenset(), False),
    ],
)
def test_requests_wait_for_the_queue_that_a_change_makes_grow(
    in_place: set[str] | None, rate_per_s: float, excluded: frozenset[int], waits: bool
) -> None:
    """One instance bears 10 requests/s, and half of that in the second that each further one takes."""
    space = ConfigurationSpace.parse("instances=1:3,intra_op_threads=1")
    settings = replace(GUIDED, process_start_s=1.0, beside_a_start=2.0, spread_s=1.0)
    costs = change_costs(space, in_place, [10.0, 13.0, 17.0], settings, excluded)
    # of 9 requests a second: 4 wait 0.5 s, and 0.5 s while 13/s drain them; 8 wait 1 s and 0.5 s
    expected_ms = np.array([0.0, 4 * 1.0, 8 * 1.5]) * 1e3 / 9
    np.testing.assert_allclose(costs.waiting_ms(0, np.arange(3), rate_per_s), waits * expected_ms)


@pytest.mark.parametrize(
    ("in_place", "in_force", "kept"),
    [
        ({"instances"}, {"max_batch_size": 1, "max_queue_delay_us": 0}, {(1, 0), (2, 0), (2, 2000)}),
        ({"instances"}, {"max_batch_size": 1, "max_queue_delay_us": 2000}, {(1, 2000), (2, 0), (2, 2000)}),
        ({"instances"}, {"max_batch_size": 2, "max_queue_delay_us": 0}, {(1, 0), (2, 0), (2, 2000)}),
        ({"instances", "max_queue_delay_us"}, {"max_batch_size": 1, "max_queue_delay_us": 0}, "all"),
        (None, {"max_batch_size": 1, "max_queue_delay_us": 0}, "all"),
    ],
)
def test_batches_of_one_come_with_the_delay_in_force_where_changing_it_costs(
    in_place: set[str] | None, in_force: dict[str, int], kept: object
) -> None:
    space = ConfigurationSpace.parse("instances=1:3,max_batch_size=1,2,max_queue_delay_us=0,2000")
    present = space.number({"instances": 2, **in_force})
    numbers = change_costs(space, in_place).without_vain_delays(present, np.arange(len(space)))
    everything = {(1, 0), (1, 2000), (2, 0), (2, 2000)}
    assert {tuple(row) for row in space.values[numbers][:, 1:].tolist()} == (
        everything if kept == "all" else kept
    )
