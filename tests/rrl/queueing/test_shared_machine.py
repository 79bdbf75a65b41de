"""Several models share the cores of one simulated machine."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.queueing.machine import Machine
from rrl.queueing.shared_machine import Contention, SharedMachine
from rrl.queueing.simulator import Simulation

ONE = np.array([1])
FAIR = Contention(2.0, 1.0, 0.0)  # two cores, shared out without any loss


def machine(alone_s: float = 0.1) -> Machine:
    table_s = alone_s * np.array([[[[1.0, 1.5]], [[0.6, 0.9]]]])
    return Machine(ONE, np.array([1, 2]), ONE, np.array([1, 2]), table_s)


def test_a_model_alone_is_served_as_by_the_simulator_of_one() -> None:
    rng = np.random.default_rng(1)
    times_s = np.sort(rng.uniform(0, 100, 700))
    configuration = {"instances": 1, "max_batch_size": 2, "max_queue_delay_us": 20_000}
    one = Simulation(machine(), discipline="ps").run(times_s, None, configuration, 200.0)
    shared = SharedMachine([machine(), machine()], FAIR)
    own, other = shared.run([times_s, np.empty(0)], [configuration, {"instances": 1}], 200.0)
    assert len(other.finish_s) == 0
    assert own.finish_s == pytest.approx(one.finish_s)
    assert own.batch_size == pytest.approx(one.batch_size)


def test_threads_beyond_the_cores_take_turns() -> None:
    configurations = [{"instances": 1, "intra_op_threads": 2}, {"instances": 1, "intra_op_threads": 2}]
    shared = SharedMachine([machine(), machine()], FAIR)
    first, second = shared.run([np.zeros(1), np.full(1, 0.02)], configurations, 10.0)
    # 60 ms of work each on two cores: the first has them for 20 ms, then both have half
    assert first.finish_s[0] == pytest.approx(0.02 + 2 * 0.04)
    assert second.finish_s[0] == pytest.approx(0.12)


def test_threads_within_the_cores_do_not_wait() -> None:
    shared = SharedMachine([machine(), machine()], FAIR)
    first, second = shared.run([np.zeros(1), np.zeros(1)], [{"instances": 1}, {"instances": 1}], 10.0)
    assert first.finish_s[0] == second.finish_s[0] == pytest.approx(0.1)


def test_runs_one_after_the_other_are_as_one() -> None:
    rng = np.random.default_rng(2)
    arrivals_s = [np.sort(rng.uniform(0, 20, 150)), np.sort(rng.uniform(0, 20, 90))]
    configurations = [{"instances": 2, "max_batch_size": 2}, {"instances": 1, "intra_op_threads": 2}]
    whole = SharedMachine([machine(0.05), machine(0.08)], Contention(2.0, 1.1, 0.3))
    at_once = whole.run(arrivals_s, configurations, 30.0)
    parts = SharedMachine([machine(0.05), machine(0.08)], Contention(2.0, 1.1, 0.3))
    finished: list[list[float]] = [[], []]
    for until_s in (3.0, 3.5, 11.0, 30.0):
        begin_s = parts.now_s
        new = [each[(each >= begin_s) & (each < until_s)] for each in arrivals_s]
        for m, outcome in enumerate(parts.run(new, configurations, until_s)):
            finished[m] += outcome.finish_s.tolist()
    for m, outcome in enumerate(at_once):
        assert sorted(finished[m]) == pytest.approx(sorted(outcome.finish_s.tolist()))
    assert parts.backlogs.tolist() == whole.backlogs.tolist() == [0, 0]
