"""AIMD: one more request as long as the objective holds, a tenth less once it is exceeded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.aimd import AIMD, AIMDSettings
from rrl.agent import Task, Transition, observe
from rrl.measurement import LatencySummary, Measurement
from rrl.objective import MeanLatency, Objective, StrictSLO
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3], max_batch_size=[1, 2, 4, 8, 16])
FOUND = {"instances": 2, "max_batch_size": 2}


class Server:
    """A server in a configuration, and an agent that tunes it."""

    def __init__(self, objective: Objective, found: dict[str, int] = FOUND) -> None:
        self.agent = AIMD(Task(SPACE, objective))
        self.number = SPACE.number(found)
        self.observation = observe(Measurement(1.0, 10, 10, 0), SPACE, self.number)

    def interval(self, latency_ms: float, number: int | None = None, gap: str = "") -> int:
        """Runs what the agent proposes (or the guard's `number`); the batch size in force."""
        action = self.agent.act(self.observation) if number is None else SPACE.action(number)
        summary = LatencySummary(mean_ms=latency_ms, p95_ms=latency_ms)
        measurement = Measurement(1.0, 10, 10, 0, summary, gap=gap)
        before, in_force = self.observation, SPACE.number_of_action(action)
        self.observation = observe(measurement, SPACE, in_force)
        self.agent.update(Transition(before, action, latency_ms, self.observation, measurement))
        return SPACE.configuration(in_force)["max_batch_size"]

    def proposed(self) -> dict[str, int]:
        return SPACE.configuration(SPACE.number_of_action(self.agent.act(self.observation)))


def test_the_batch_size_grows_by_one_request_while_the_limit_holds() -> None:
    server = Server(StrictSLO(100.0))
    assert [server.interval(50.0) for _ in range(8)] == [2, 2, 4, 4, 4, 4, 8, 8]  # b = 2, 3, 4 ... 9


def test_it_backs_off_by_a_tenth_when_the_limit_is_exceeded() -> None:
    server = Server(StrictSLO(100.0), {"instances": 2, "max_batch_size": 16})
    sizes = [server.interval(101.0) for _ in range(8)]
    assert sizes == [16, 8, 8, 8, 8, 8, 8, 4]  # b = 16, 14.4, 13.0, 11.7, 10.5, 9.4, 8.5, 7.7
    assert [server.interval(99.0) for _ in range(4)] == [4, 4, 8, 8]  # b = 6.9, 7.9, 8.9, 9.9


def test_other_knobs_stay_as_they_were_found_whatever_the_guard_does() -> None:
    server = Server(StrictSLO(100.0))
    server.interval(50.0)
    server.interval(50.0, SPACE.number({"instances": 3, "max_batch_size": 8}))
    assert server.proposed() == {"instances": 2, "max_batch_size": 8}  # b = 9: on from the guard's 8


def test_the_batch_size_stays_within_its_values() -> None:
    server = Server(StrictSLO(100.0))
    for _ in range(40):
        server.interval(50.0)
    assert server.proposed()["max_batch_size"] == 16
    assert server.interval(101.0) == 16
    assert server.interval(101.0) == 8  # 16 · 0.9: nothing had piled up beyond 16
    for _ in range(60):
        server.interval(101.0)
    assert server.proposed()["max_batch_size"] == 1


def test_without_a_limit_it_backs_off_when_latency_gets_clearly_worse() -> None:
    server = Server(MeanLatency())
    assert [server.interval(ms) for ms in (100.0, 105.0, 109.0, 105.0)] == [2, 2, 4, 4]  # b = 6
    server.interval(150.0)  # b = 5.4
    server.interval(150.0)  # b = 4.9: the average is 101.9 + 0.2 · 48.1 = 111.5
    server.interval(90.0)  # b = 5.9
    for _ in range(3):
        server.interval(90.0)
    assert server.proposed()["max_batch_size"] == 8


@pytest.mark.parametrize(("latency_ms", "gap"), [(math.nan, ""), (500.0, "the server restarted")])
def test_an_interval_with_a_gap_or_no_cost_changes_nothing(latency_ms: float, gap: str) -> None:
    server = Server(StrictSLO(100.0), {"instances": 2, "max_batch_size": 4})
    for _ in range(9):
        server.interval(latency_ms, gap=gap)
    assert server.proposed() == {"instances": 2, "max_batch_size": 4}
    server.interval(50.0)
    assert server.proposed()["max_batch_size"] == 4


def test_a_space_without_the_knob_is_refused() -> None:
    with pytest.raises(ValueError, match="the knob max_batch_size, which is not among instances; add it"):
        AIMD(Task(ConfigurationSpace.of(instances=[1, 2])))


@pytest.mark.parametrize(
    "wrong", [{"increase": 0.0}, {"back_off": 1.0}, {"memory": 1.0}, {"tolerance": -0.1}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        AIMDSettings(**wrong)


def test_actions_are_what_the_environment_takes() -> None:
    action = Server(StrictSLO(100.0)).proposed()
    assert action == FOUND
    assert Server(StrictSLO(100.0)).agent.act(np.zeros(10, dtype=np.float32)).dtype == np.int64
