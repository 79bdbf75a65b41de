"""`scripts/bench failing`: its servers fail as they say, and its columns count what users felt."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rrl.guarding.settings import GuardSettings
from rrl.interval import Watch
from rrl.measurement import LatencySummary, Measurement, Progress
from scripts.benchmarks.tuner.simulated.failing import (
    ALL_RULES,
    CHANGES,
    FailingRun,
    episode,
    guard_settings,
    line_of,
)
from scripts.benchmarks.tuner.simulated.failing_servers import BATCH_SIZES, KINDS, FailingServer, Kind

INTERVALS = 60


def measured_under(server: FailingServer, number: int, intervals: int) -> list[Measurement]:
    env = server.environment(repeat=0)
    return [env.run(number).measurement for _ in range(intervals)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_server_fails_under_some_configurations_and_its_start_bears_the_load(kind: Kind) -> None:
    for seed in range(5):
        server = FailingServer.drawn(kind, seed, INTERVALS)
        everywhere = kind in ("clients", "restarts")
        assert server.faults.faulty.all() == everywhere
        assert (
            everywhere or BATCH_SIZES[server.faults.faulty].min() > BATCH_SIZES[~server.faults.faulty].max()
        )
        assert server.faults.to_avoid.any() == (kind in ("memory", "spells", "crashes"))
        assert not measured_under(server, server.start, 1)[0].aborted


def test_the_share_that_fails_is_the_servers_own() -> None:
    server = FailingServer.drawn("memory", 0, INTERVALS)
    bad, good = np.flatnonzero(server.faults.faulty)[0], np.flatnonzero(~server.faults.faulty)[0]
    seen = measured_under(server, int(bad), 20)
    share = sum(m.failures for m in seen) / sum(m.answered for m in seen)
    assert share == pytest.approx(server.faults.share, abs=0.05)
    assert not any(m.failures for m in measured_under(server, int(good), 5))


def test_a_look_at_a_running_interval_sees_its_failures() -> None:
    drawn = FailingServer.drawn("memory", 0, INTERVALS)
    server = replace(drawn, faults=replace(drawn.faults, share=0.5))
    looks: list[Progress] = []
    env = server.environment(repeat=0)

    def look(progress: Progress) -> str:
        looks.append(progress)
        return ""

    after = env.run(int(np.flatnonzero(server.faults.faulty)[0]), Watch(look)).measurement
    failures = [each.failures for each in looks]
    assert failures == sorted(failures)
    assert 0 < failures[-1] <= after.failures


def test_a_lost_server_leaves_a_gap() -> None:
    server = FailingServer.drawn("crashes", 1, INTERVALS)
    seen = measured_under(server, int(np.flatnonzero(server.faults.faulty)[0]), 30)
    assert {m.gap for m in seen} == {"", "the server restarted"}


def test_a_run_is_repeatable_and_one_with_a_rule_changed_meets_the_same_server() -> None:
    run = episode("restarts", "random", ALL_RULES, 6, seed=3)
    assert run == episode("restarts", "random", ALL_RULES, 6, seed=3)
    assert run.felt >= 1
    line = line_of("restarts", "random", CHANGES[0], [run, run], [run, run], repeats=1)
    assert line.endswith("1.000 ± 0.000")


def test_chance_differs_between_servers_and_between_their_repeats() -> None:
    def lost(seed: int, repeat: int) -> tuple[int, ...]:
        server = FailingServer.drawn("restarts", seed, INTERVALS)
        env = server.environment(repeat)
        return tuple(k for k in range(INTERVALS) if env.run(server.start).measurement.gap)

    assert len({lost(seed, 0) for seed in range(10)}) > 5
    assert len({lost(0, repeat) for repeat in range(10)}) > 5
    servers = [FailingServer.drawn("restarts", seed, INTERVALS) for seed in range(10)]
    assert len({server.agent_seed(repeat) for server in servers for repeat in range(2)}) == 20


def test_the_error_is_over_servers_and_runs_of_one_count_together() -> None:
    run = episode("restarts", "random", ALL_RULES, 6, seed=3)
    more = run._replace(felt=run.felt * math.exp(0.2))
    line = line_of("restarts", "random", CHANGES[0], [more, more, run, run], [run] * 4, repeats=2)
    assert line.endswith("1.105 ± 0.200")


def test_a_failed_request_is_felt_as_ten_of_the_bests_and_a_lost_server_as_an_interval_of_them() -> None:
    server = FailingServer.drawn("clients", 0, INTERVALS)

    def after(*intervals: dict[str, Any]) -> FailingRun:
        usual: dict[str, Any] = {"arrivals": 200, "completions": 200, "failures": 0}
        latency = LatencySummary(mean_ms=50.0)
        seen = [Measurement(1.0, **usual | each, latency=latency) for each in intervals]
        records: Any = [SimpleNamespace(measurement=m, decision="agent", failures=m.failures) for m in seen]
        return FailingRun.of(server, records, server.start)

    answered, half = dict[str, Any](), {"completions": 100, "failures": 100}
    lost = {"completions": 0, "gap": "the server restarted"}
    best_ms = 50.0 / after(answered).felt
    assert after(half).felt == pytest.approx((50.0 + 10 * best_ms) / 2 / best_ms)
    assert after(lost).felt == pytest.approx(10.0)
    assert [after(each).failed for each in (answered, half, lost)] == [0.0, 0.5, 1.0]
    assert after(lost, answered).failed == 0.5


def test_a_change_is_of_one_setting_of_the_guard() -> None:
    assert guard_settings("watch_s=7.5") == GuardSettings(watch_s=7.5)
    assert guard_settings(ALL_RULES) == GuardSettings()
    for change, why in (("horizon=3", "sets nothing that the guard knows"), ("watch_s=x", "give a number")):
        with pytest.raises(ValueError, match=why):
            guard_settings(change)
