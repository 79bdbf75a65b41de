"""Quick search climbs as Triton Model Analyzer does, and then stays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from baselines.quick_search import QuickSearch, QuickSearchSettings
from rrl.agent import Task, Transition, observe
from rrl.measurement import LatencySummary, Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=[1, 2, 3, 4], intra_op_threads=[1, 2], max_batch_size=[1, 2, 4, 8, 16, 32, 64]
)
FOUND = {"instances": 1, "intra_op_threads": 2, "max_batch_size": 64}

Cost = Callable[[dict[str, int]], float]


class Server:
    """A server of known costs, and quick search tuning it."""

    def __init__(self, cost: Cost, settings: QuickSearchSettings | None = None) -> None:
        self.agent = QuickSearch(Task(SPACE), settings)
        self.cost = cost
        self.observation = observe(Measurement(1.0, 10, 10, 0), SPACE, SPACE.number(FOUND))

    def interval(self, forced: dict[str, int] | None = None, gap: str = "") -> dict[str, int]:
        """Runs what the agent proposes, or what the guard forces; the configuration in force."""
        action = self.agent.act(self.observation) if forced is None else SPACE.action(SPACE.number(forced))
        number = SPACE.number_of_action(action)
        cost_ms = math.nan if gap else self.cost(SPACE.configuration(number))
        measurement = Measurement(1.0, 10, 10, 0, LatencySummary(mean_ms=cost_ms), gap=gap)
        before, self.observation = self.observation, observe(measurement, SPACE, number)
        self.agent.update(Transition(before, action, cost_ms, self.observation, measurement))
        return SPACE.configuration(number)

    def climb(self) -> list[dict[str, int]]:
        """Intervals until the search is over."""
        measured = []
        while not self.agent.done:
            measured.append(self.interval())
        return measured


def place(configuration: dict[str, int]) -> tuple[int, int]:
    return configuration["instances"], configuration["max_batch_size"]


def flat(configuration: dict[str, int]) -> float:
    return 10.0


def more_is_better(configuration: dict[str, int]) -> float:
    return 100.0 / (configuration["instances"] * configuration["max_batch_size"])


def valley(configuration: dict[str, int]) -> float:
    """Best with 3 instances and batches of 8."""
    away = abs(configuration["instances"] - 3) + abs(math.log2(configuration["max_batch_size"] / 8))
    return 10.0 * 1.5**away


def test_the_found_configuration_comes_first_then_the_least_values_and_three_spread_neighbours() -> None:
    measured = Server(flat).climb()
    assert measured[0] == FOUND
    assert [place(c) for c in measured[1:]] == [(1, 1), (2, 1), (1, 2), (3, 4)]


def test_where_nothing_is_gained_the_search_ends() -> None:
    server = Server(flat)
    assert len(server.climb()) == 5
    assert server.agent.done


def test_the_next_home_is_where_the_gains_over_the_present_one_lead() -> None:
    # The cost is 100 at (1, 1); (2, 1) and (1, 2) cost 50, a gain of 2/3; (3, 4) costs 8.3, a gain of 1.69
    # over two indices of each knob. For both knobs (0.67 + 1.69) / (1 + 2) = 0.79: a step of 2, to (3, 4).
    # It and three neighbours of it are measured already, all far worse: another step of 2 away from them.
    server = Server(more_is_better)
    assert [place(server.interval()) for _ in range(6)][5] == (4, 16)
    server.climb()
    assert place(server.interval()) == (4, 64)


def test_a_small_gain_makes_a_small_step() -> None:
    # Larger batches gain 0.1 twice, over one and two indices: 0.2 / 3 = 0.067 is no step; 0.133 is one of 1.
    assert len(Server(lambda c: 10.0 * math.exp(-0.1 * (c["max_batch_size"] > 1))).climb()) == 5
    measured = Server(lambda c: 10.0 * math.exp(-0.2 * (c["max_batch_size"] > 1))).climb()
    assert (1, 2) in [place(c) for c in measured[1:4]]
    assert len(measured) > 5


def test_it_climbs_to_a_valley_with_far_fewer_measurements_than_there_are_configurations() -> None:
    server = Server(valley)
    measured = server.climb()
    assert place(server.interval()) == (3, 8)
    assert len(measured) < 20


def test_knobs_that_model_analyzer_does_not_search_stay_as_found() -> None:
    assert {c["intra_op_threads"] for c in Server(valley).climb()} == {2}


def test_all_knobs_are_searched_if_asked_for() -> None:
    server = Server(lambda c: valley(c) * c["intra_op_threads"], QuickSearchSettings(every_knob=True))
    server.climb()
    assert server.interval()["intra_op_threads"] == 1


def test_nothing_is_measured_twice() -> None:
    measured = [tuple(c.values()) for c in Server(valley).climb()]
    assert len(measured) == len(set(measured))


def test_it_stays_with_the_best_whatever_is_measured_afterwards() -> None:
    server = Server(valley)
    server.climb()
    best = server.interval()
    server.cost = lambda c: 1000.0 if c == best else 1.0
    assert [server.interval() for _ in range(5)] == [best] * 5
    assert SPACE.configuration(server.agent.recommended() or 0) == best


def test_before_it_has_measured_anything_it_recommends_nothing() -> None:
    server = Server(valley)
    assert server.agent.recommended() is None
    server.interval()
    assert SPACE.configuration(server.agent.recommended() or 0) == FOUND


def test_it_stays_with_what_it_found_if_nothing_is_better() -> None:
    server = Server(lambda c: 5.0 if c == FOUND else 10.0)
    server.climb()
    assert server.interval() == FOUND


def test_an_interval_with_a_gap_is_repeated() -> None:
    server = Server(valley)
    server.interval()
    lost = server.interval(gap="the server restarted")
    assert server.interval() == lost


def test_what_the_guard_measured_needs_no_measurement_of_its_own() -> None:
    server = Server(valley)
    server.interval()
    for forced in ({"instances": 1, "max_batch_size": 1}, {"instances": 2, "max_batch_size": 1}):
        server.interval(FOUND | forced)
    assert place(server.interval()) == (1, 2)


def test_a_neighbour_that_was_refused_twice_gives_way_to_the_next() -> None:
    server = Server(valley)
    for _ in range(2):  # the configuration found, and the first home
        server.interval()
    for _ in range(2):
        server.agent.refused(SPACE.number(FOUND | {"instances": 2, "max_batch_size": 1}))
    assert place(server.interval()) == (3, 1)
    assert (2, 1) not in [place(c) for c in server.climb()]


@pytest.mark.parametrize("by", ["target", "guard"])
def test_a_home_that_may_not_be_measured_ends_the_search(by: str) -> None:
    server = Server(valley)
    server.interval()
    home = SPACE.number(FOUND | {"instances": 1, "max_batch_size": 1})
    if by == "target":
        for _ in range(2):
            server.agent.refused(home)
    else:
        server.agent.keep_off(frozenset({home}))
        server.interval(FOUND)
    assert server.agent.done
    assert server.interval() == FOUND


def test_what_the_guard_refuses_is_passed_over_unless_it_was_measured() -> None:
    server = Server(valley)
    for _ in range(3):  # the configuration found, the first home, and (2, 1)
        server.interval()
    places = ((2, 1), (1, 2))
    configurations = (FOUND | {"instances": n, "max_batch_size": b} for n, b in places)
    server.agent.keep_off(frozenset(map(SPACE.number, configurations)))
    server.interval(FOUND)
    assert place(server.interval()) not in places
    neighbours = [(instances + 1, 2**batch) for batch, instances in server.agent._neighbours()]
    assert [each in neighbours for each in places] == [True, False]


def test_the_best_that_was_measured_is_left_when_the_target_refuses_it() -> None:
    server = Server(valley)
    server.climb()
    best = server.interval()
    for _ in range(2):
        server.agent.refused(SPACE.number(best))
    assert server.interval() != best


def test_a_measurement_off_the_searched_grid_changes_nothing() -> None:
    server = Server(valley)
    server.interval()
    server.interval(FOUND | {"intra_op_threads": 1, "max_batch_size": 1})
    assert place(server.interval()) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"radius": 0}, "radius must be at least 1"),
        ({"min_initialized": 0}, "min_initialized must be at least 1"),
        ({"step_thresholds": (0.3, 0.09)}, "step_thresholds must ascend"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        QuickSearchSettings(**settings)


def test_actions_are_of_the_space() -> None:
    for configuration in Server(more_is_better).climb():
        action = SPACE.action(SPACE.number(configuration))
        assert (action < np.asarray(SPACE.shape)).all()
