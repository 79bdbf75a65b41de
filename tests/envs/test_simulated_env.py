from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env

import envs
from envs.simulated import SimulatedServing
from rrl.arrival_summary import dispersion_of
from rrl.interval import Watch
from rrl.measurement import Measurement, Progress
from rrl.objective import LeastResources, StrictSLO
from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from serving_adapter.load.arrivals import Bursts, Poisson
from serving_adapter.load.sizes import FixedSizes, LognormalSizes
from tests.support import CHECKOUT

PROJECT = CHECKOUT


@dataclass(frozen=True)
class Moments:
    """Arrivals at given times, then no more."""

    chunks: tuple[tuple[float, ...], ...]

    @property
    def mean_rate_per_s(self) -> float:
        return math.nan

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        return (np.array(chunk) for chunk in self.chunks)


def constant_machine(service_s: float) -> Machine:
    axis = np.array([1, 4])
    return Machine(axis, axis, axis, axis, np.full((2, 2, 2, 2), service_s))


def trajectory(env: SimulatedServing, seed: int, steps: int = 12) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    measurements = [info["measurement"]]
    for _ in range(steps):
        number = int(rng.integers(len(env.space)))
        measurements.append(env.step(env.space.action(number))[4]["measurement"])
    return [measurement.to_json() for measurement in measurements]


def test_gymnasiums_checker_finds_nothing() -> None:
    batched: dict[str, Any] = {"space": "instances=1:4,max_batch_size=1,8,max_queue_delay_us=0,5000"}
    for settings in ({}, batched):
        env = gym.make("rrl/SimulatedServing-v0", **settings)
        check_env(env.unwrapped, skip_render_check=True)


def test_public_names_are_what_all_lists() -> None:
    for name in envs.__all__:
        assert getattr(envs, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        envs.Nothing  # noqa: B018
    assert {"rrl/SimulatedServing-v0", "rrl/LiveServing-v0"} <= set(gym.registry)


def test_simulation_needs_neither_torch_nor_grpc() -> None:
    code = (
        "import sys, gymnasium, envs; env = gymnasium.make('rrl/SimulatedServing-v0'); env.reset(seed=0); "
        "env.step(env.action_space.sample()); "
        "print([m for m in ('torch', 'grpc', 'tritonclient') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_an_episode_follows_from_its_seed() -> None:
    settings: dict[str, Any] = {
        "arrivals": Bursts(20.0),
        "sizes": LognormalSizes(32, 0.6),
        "size_of_table": 32,
        "service_variation": 0.3,
        "space": "instances=1:4,intra_op_threads=1,2,4,max_batch_size=1,4,max_queue_delay_us=0,10000",
    }
    env = SimulatedServing(**settings)
    first = trajectory(env, seed=7)
    assert trajectory(env, seed=7) == first
    assert trajectory(SimulatedServing(**settings), seed=7) == first
    assert trajectory(env, seed=8) != first
    assert json.dumps(first)  # plain numbers only


def test_reset_puts_the_asked_configuration_in_force() -> None:
    env = SimulatedServing(space="instances=1:4,intra_op_threads=1,2,4,max_queue_delay_us=0,100")
    as_serve_starts = {"instances": 1, "intra_op_threads": 4, "max_queue_delay_us": 0}
    assert env.reset(seed=1)[1]["configuration"] == as_serve_starts
    asked = {"instances": 3, "intra_op_threads": 2, "max_queue_delay_us": 100}
    observation, info = env.reset(seed=1, options={"configuration": asked})
    assert info["configuration"] == asked
    assert info["number"] == env.space.number(asked)
    assert observation[-3:] == pytest.approx([2 / 3, 0.5, 1.0])
    assert observation[0] == pytest.approx(info["measurement"].arrival_rate_per_s)
    with pytest.raises(ValueError, match="not on the grid"):
        env.reset(options={"configuration": asked | {"instances": 9}})
    started = SimulatedServing(space=env.space, start=asked)
    assert started.reset(seed=1)[1]["configuration"] == asked


def test_step_before_reset_is_refused() -> None:
    env = SimulatedServing()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(env.action_space.sample())


def test_requests_are_conserved_from_interval_to_interval() -> None:
    env = SimulatedServing(arrivals=40.0)
    _, info = env.reset(seed=3)
    backlog = 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        measurement = info["measurement"]
        assert measurement.arrivals == 100
        assert measurement.arrivals - measurement.completions == measurement.backlog_growth
        backlog += measurement.backlog_growth
        assert measurement.backlog == backlog
        assert sum(row.count * row.batch_size for row in measurement.telemetry) == measurement.completions
        assert 0 <= measurement.cpu_utilisation <= 1
        info = env.step(env.space.action(int(rng.integers(len(env.space)))))[4]


def test_a_bad_choice_is_carried_into_the_next_interval() -> None:
    env = SimulatedServing(machine=constant_machine(0.1), space="instances=1,4", arrivals=20.0)
    _, good = env.reset(seed=0, options={"configuration": {"instances": 4}})
    _, bad = env.reset(seed=0, options={"configuration": {"instances": 1}})
    assert bad["measurement"].backlog > 30
    after = env.step(np.array([1]))[4]
    assert after["measurement"].backlog_growth < -30
    assert after["measurement"].latency.mean_ms > 5 * good["measurement"].latency.mean_ms


def test_an_interval_tells_its_arrivals() -> None:
    env = SimulatedServing(arrivals=Moments(((0.5, 0.5, 1.25), (4.0, 5.0))), interval_s=2.0)
    _, info = env.reset(seed=0)
    told = [info["measurement"], *(env.step(env.action_space.sample())[4]["measurement"] for _ in range(2))]
    assert [m.arrival_summary.offsets_s for m in told] == [(0.5, 0.5, 1.25), (), (0.0, 1.0)]
    assert [m.arrival_summary.items for m in told] == [(1, 1, 1), (), (1, 1)]
    assert all(math.isnan(m.dispersion) for m in told)  # too few to tell


def test_an_interval_tells_the_arrivals_until_it_was_aborted() -> None:
    env = SimulatedServing(arrivals=50.0, interval_s=4.0)
    env.reset(seed=0)
    told = env.run(0, Watch(interrupt=lambda progress: "enough")).measurement
    assert (told.duration_s, len(told.arrival_summary.offsets_s)) == (1.0, told.arrivals)
    assert 0 <= told.arrival_summary.offsets_s[-1] < 1.0


@pytest.mark.parametrize("arrivals", [Poisson(100.0), Bursts(100.0)])
def test_the_dispersion_is_that_of_the_arrivals_that_are_told(arrivals: Poisson | Bursts) -> None:
    env = SimulatedServing(arrivals=arrivals, interval_s=4.0)
    _, info = env.reset(seed=0)
    for _ in range(5):
        told = info["measurement"]
        assert told.dispersion == pytest.approx(dispersion_of(told.arrival_summary, 4.0), rel=0.05)
        info = env.step(np.zeros(3, int))[4]


def test_a_measurement_by_hand() -> None:
    env = SimulatedServing(
        machine=constant_machine(1.0),
        space="instances=1,intra_op_threads=2",
        arrivals=Moments(((0.0, 1.0), (), (1.5, 6.0, 9.0))),
        interval_s=5.0,
        cores=4,
    )
    measurement = env.reset(seed=0)[1]["measurement"]
    assert (measurement.duration_s, measurement.arrivals, measurement.completions) == (5.0, 3, 3)
    assert measurement.latency.mean_ms == pytest.approx((1000 + 1000 + 1500) / 3)
    assert measurement.queue.mean_ms == pytest.approx(500 / 3)
    assert measurement.service.p99_ms == pytest.approx(1000)
    assert measurement.cpu_utilisation == pytest.approx(2 * 3.0 / (4 * 5.0))
    assert math.isnan(measurement.gpu_utilisation)
    _, reward, terminated, truncated, info = env.step(np.array([0, 0]))
    assert (reward, terminated, truncated) == (pytest.approx(-1000), False, True)
    # At 9.0 + 1.0 the last request's batch ends, and so does the interval: it is not completed in it.
    assert (info["measurement"].completions, info["measurement"].backlog) == (1, 1)
    with pytest.raises(gym.error.ResetNeeded, match="run out"):
        env.step(np.array([0, 0]))
    assert env.reset()[1]["measurement"].arrivals == 3


def test_a_trace_that_ends_inside_an_interval_truncates_it() -> None:
    times = tuple(float(t) for t in range(1, 8))
    env = SimulatedServing(
        machine=constant_machine(0.25),
        space="instances=1",
        arrivals=Moments((times,)),
        requests_per_interval=5,
    )
    first = env.reset(seed=0)[1]["measurement"]
    assert (first.arrivals, first.duration_s) == (5, 6.0)
    _, _, _, truncated, info = env.step(np.array([0]))
    assert truncated
    assert (info["measurement"].arrivals, info["measurement"].completions) == (2, 2)
    with pytest.raises(ValueError, match="no arrivals"):
        SimulatedServing(arrivals=Moments(())).reset(seed=0)


def test_arrivals_at_one_moment_make_no_interval_of_no_length() -> None:
    env = SimulatedServing(
        machine=constant_machine(0.5),
        space="instances=1",
        arrivals=Moments(((0.0,) * 9, (0.0,) * 9, (2.0,) * 9, (3.0,) * 4)),
        requests_per_interval=4,
    )
    assert env.reset(seed=0)[1]["measurement"].arrivals == 18
    info = env.step(np.array([0]))[4]
    assert (info["measurement"].arrivals, info["measurement"].duration_s) == (9, 1.0)
    info = env.step(np.array([0]))[4]
    assert info["measurement"].arrivals == 4
    assert info["measurement"].duration_s > 0


def test_an_interval_without_an_answer_has_no_cost() -> None:
    env = SimulatedServing(
        machine=constant_machine(0.1), space="instances=1", arrivals=Moments(((5.0,),)), interval_s=1.0
    )
    observation, info = env.reset(seed=0)
    assert math.isnan(info["cost"])
    assert np.all(observation == 0)
    assert env.step(np.array([0]))[1] == 0.0


def test_the_interrupt_sees_the_interval_and_can_end_it() -> None:
    seen: list[Progress] = []

    def look(progress: Progress) -> str:
        seen.append(progress)
        return ""

    settings: dict[str, Any] = {
        "arrivals": 20.0,
        "space": "instances=1,2,4",
        "machine": constant_machine(0.1),
    }

    def watched_first(interrupt: Callable[[Progress], str]) -> tuple[SimulatedServing, Measurement]:
        env = SimulatedServing(**settings)
        env.np_random = seeding.np_random(5)[0]
        return env, env.run(env.start, Watch(interrupt)).measurement

    expected = SimulatedServing(**settings).reset(seed=5)[1]["measurement"]
    _, got = watched_first(look)
    for name in ("duration_s", "arrivals", "completions", "backlog"):
        assert getattr(got, name) == getattr(expected, name)
    assert got.latency == pytest.approx(expected.latency)
    assert [row[:3] for row in got.telemetry] == [row[:3] for row in expected.telemetry]
    assert [p.elapsed_s / expected.duration_s for p in seen] == pytest.approx([0.25, 0.5, 0.75])
    for progress in seen:
        assert progress.arrivals - progress.completions == progress.backlog == progress.backlog_growth

    watched, aborted = watched_first(lambda progress: "running away" if progress.backlog > 20 else "")
    assert aborted.aborted == "running away"
    assert aborted.duration_s < expected.duration_s
    assert aborted.backlog > 20
    after: Measurement = watched.step(np.array([2]))[4]["measurement"]
    assert (after.aborted, after.arrivals) == ("", 100)
    assert after.completions == after.arrivals + aborted.backlog - after.backlog  # nothing was lost


def test_sizes_scale_the_service_times() -> None:
    for padded, sizes, expected_ms in [(False, FixedSizes(64), 200.0), (True, FixedSizes(16), 50.0)]:
        env = SimulatedServing(
            machine=constant_machine(0.1),
            space="instances=4,max_batch_size=4",
            arrivals=5.0,
            sizes=sizes,
            size_of_table=32,
            padded_batches=padded,
        )
        assert env.reset(seed=0)[1]["measurement"].service.mean_ms == pytest.approx(expected_ms)


def test_padding_makes_batches_of_mixed_sizes_slower() -> None:
    settings: dict[str, Any] = {
        "machine": constant_machine(0.02),
        "space": "instances=2,max_batch_size=4,max_queue_delay_us=50000",
        "arrivals": Poisson(50.0),
        "sizes": LognormalSizes(32, 0.8),
        "size_of_table": 32,
    }
    mean_ms = [
        SimulatedServing(**settings, padded_batches=padded).reset(seed=0)[1]["measurement"].service.mean_ms
        for padded in (False, True)
    ]
    assert mean_ms[1] > 1.2 * mean_ms[0]


def test_service_times_vary_as_asked_around_the_tables() -> None:
    env = SimulatedServing(
        machine=constant_machine(0.1), space="instances=4", service_variation=0.5, requests_per_interval=5000
    )
    service = env.reset(seed=0)[1]["measurement"].service
    assert service.mean_ms == pytest.approx(100, rel=0.05)
    assert service.p95_ms == pytest.approx(100 * math.exp(0.5 * 1.645 - 0.125), rel=0.1)


def test_a_machine_may_be_a_seed_a_file_or_itself(tmp_path: Path) -> None:
    machine = Machine.invent(4)
    machine.save(tmp_path / "node.npz")
    choices: list[Any] = [4, str(tmp_path / "node.npz"), tmp_path / "node.npz", machine]
    latencies = [SimulatedServing(choice).reset(seed=0)[1]["measurement"].latency for choice in choices]
    assert len(set(latencies)) == 1


def test_objectives_set_the_reward() -> None:
    for objective in (StrictSLO(100.0), LeastResources(100.0)):
        env = SimulatedServing(objective=objective)
        env.reset(seed=0)
        _, reward, _, _, info = env.step(env.space.action(env.space.number(env.space.configuration(17))))
        assert reward == -objective.cost(info["measurement"], info["configuration"]) == -info["cost"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": "instances=1:11"}, "beyond the machine's table, which ends at 10"),
        ({"space": "max_batch_size=64"}, "beyond the machine's table, which ends at 32"),
        ({"space": "replicas=1:2"}, "unknown knob 'replicas'"),
        ({"space": ConfigurationSpace.of(instances=[0, 1])}, "at least 1"),
        ({"interval_s": 0.0}, "interval_s"),
        ({"interval_s": math.inf}, "interval_s"),
        ({"requests_per_interval": 0}, "requests_per_interval"),
        ({"service_variation": -1.0}, "service_variation"),
        ({"size_of_table": 0.0}, "size_of_table"),
        ({"start": {"instances": 2}}, "expected a value for each"),
        ({"arrivals": -1.0}, "rate_per_s"),
        ({"arrivals": "poisson"}, "arrivals must be a number per second, or Arrivals"),
        ({"arrivals": [1.0, 2.0]}, "arrivals must be"),
        ({"machine": "no-such.npz"}, "no machine file"),
        ({"machine": -1}, "a seed must be a whole number from 0 up"),
        ({"space": {"instances": [1, 2]}}, "space must be a ConfigurationSpace, or a text"),
        ({"objective": "latency"}, r"objective must be an Objective such as MeanLatency\(\), got 'latency'"),
        ({"objective": StrictSLO}, "objective must be"),
        ({"sizes": "fixed:3"}, "sizes must be Sizes"),
        ({"requests_per_interval": 2.5}, "requests_per_interval must be a whole number, got 2.5"),
        ({"cores": math.nan}, "cores must be a whole number"),
        ({"start": 3}, "a configuration is a dictionary with a value for each of"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatedServing(**settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"instances": 1}}, "unknown options config; reset takes configuration"),
        ([1], "options must be a dictionary"),
        ({"configuration": 5}, "a configuration is a dictionary"),
        ({"configuration": [1, 2]}, "a configuration is a dictionary"),
    ],
)
def test_options_that_reset_does_not_know_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatedServing(space="instances=1:4").reset(options=options)


def test_a_unit_of_nodes_is_as_fast_as_its_table_and_keeps_all_its_nodes_busy() -> None:
    machine = over_nodes(constant_machine(0.2), (1, 4), InterNodeCost(0.0))
    measured = {}
    for nodes in (1, 4):
        env = SimulatedServing(machine, "nodes_per_unit=1,4", arrivals=1.0, cores=8)
        _, info = env.reset(seed=0, options={"configuration": {"nodes_per_unit": nodes}})
        measured[nodes] = info["measurement"]
    assert measured[1].service.mean_ms == pytest.approx(200.0)
    assert measured[4].service.mean_ms == pytest.approx(50.0)
    assert measured[4].cpu_utilisation == pytest.approx(measured[1].cpu_utilisation, rel=0.02)


def test_units_of_nodes_need_a_machine_that_has_several() -> None:
    with pytest.raises(ValueError, match="nodes_per_unit=2 lies beyond the machine's table, which ends at 1"):
        SimulatedServing(constant_machine(0.2), "instances=1,2,nodes_per_unit=1,2")
