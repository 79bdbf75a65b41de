"""The live environment: on a fake target under a fake clock."""

import math

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import envs  # noqa: F401 (registers the ids)
from envs.live import LiveServing
from rrl.agent import arrival_rate_per_s
from rrl.interval import Watch
from rrl.measurement import NOT_TOLD
from rrl.objective import StrictSLO
from tests.support.runs.fake_target import SPACE, live


def test_starts_from_the_configuration_found_or_the_grids_nearest(target):
    env = live(target)
    assert env.space.configuration(env.start) == {"instances": 2, "max_batch_size": 4}
    _, info = env.reset(seed=0)
    assert info["configuration"] == {"instances": 2, "max_batch_size": 4}
    assert env.found == {"instances": 2, "max_batch_size": 3}
    assert target.in_force == {"instances": 2, "max_batch_size": 4}


def test_a_step_applies_settles_and_measures_the_rest_of_the_interval(target, clock):
    env = live(target)
    env.reset(seed=0)
    began_s = clock.now_s
    observation, reward, terminated, truncated, info = env.step(env.space.action(0))
    assert clock.now_s - began_s == pytest.approx(5.0)
    measurement = info["measurement"]
    assert measurement.duration_s == pytest.approx(4.0)
    assert measurement.arrivals == pytest.approx(160, abs=1)
    assert measurement.latency.mean_ms == pytest.approx(20.0)
    assert target.applied[-1] == info["configuration"] == {"instances": 1, "max_batch_size": 1}
    assert arrival_rate_per_s(observation) == pytest.approx(40.0, rel=0.02)
    assert reward == -info["cost"] == pytest.approx(-20.0)
    assert not terminated
    assert not truncated
    assert measurement.gap == measurement.aborted == ""


def test_settling_lasts_until_the_backlog_of_the_configuration_before_is_answered(target, clock):
    env = live(target)
    env.reset(seed=0)
    target.rate_per_s = 120.0
    env.step(env.space.action(0))  # 50 of 120 a second: 350 pile up
    target.rate_per_s = 40.0
    began_s = clock.now_s
    _, _, _, _, info = env.step(env.space.action(8))  # 150 a second
    assert clock.now_s - began_s == pytest.approx(3.5 + 4)  # 350 are gone after 3.2 s at 150 - 40 a second
    assert info["measurement"].duration_s == pytest.approx(4.0)
    assert info["measurement"].backlog == info["measurement"].backlog_growth == 0


def test_what_users_saw_while_a_change_settled_is_told(target, clock):
    env = live(target)
    _, info = env.reset(seed=0)
    assert "settling" not in info  # nothing was read before
    _, _, _, _, info = env.step(env.space.action(0))
    assert info["changed"]
    assert info["settling"].duration_s == pytest.approx(1.0)
    assert info["settling"].completions == pytest.approx(40, abs=1)
    _, _, _, _, info = env.step(env.space.action(0))
    assert "settling" not in info
    interval = env.run(8, Watch(lambda progress: "enough"))
    assert interval.measurement.aborted
    assert interval.settling.duration_s == pytest.approx(0.0)


def test_a_queue_that_is_the_configurations_own_is_not_waited_for(target, clock):
    env = live(target)
    env.reset(seed=0)
    target.rate_per_s = 120.0
    env.step(env.space.action(0))  # 50 of 120 a second: 350 pile up
    began_s = clock.now_s
    env.step(env.space.action(3))  # 100 of 120 a second
    assert clock.now_s - began_s == pytest.approx(3.5 + 4)  # until the 350 are answered


def test_settling_is_bounded(target, clock):
    env = live(target)
    env.reset(seed=0)
    target.rate_per_s = 1000.0
    env.step(env.space.action(0))
    began_s = clock.now_s
    env.step(env.space.action(0))
    assert clock.now_s - began_s <= 15.0 + 0.5 + 1e-6


def test_interrupt_sees_progress_and_ends_the_interval(target, clock):
    env = live(target)
    env.reset(seed=0)
    seen = []

    def interrupt(progress):
        seen.append(progress)
        return "the queue runs away" if progress.backlog_growth > 100 else ""

    target.rate_per_s = 120.0
    began_s = clock.now_s
    interval = env.run(0, Watch(interrupt))  # grows by 70 a second
    assert clock.now_s - began_s == pytest.approx(1.5)
    assert interval.measurement.aborted == "the queue runs away"
    assert (interval.measurement.backlog, interval.measurement.duration_s) == (105, pytest.approx(0.5))
    assert [p.elapsed_s for p in seen] == pytest.approx([0.5, 1.5])
    assert seen[-1].arrivals == 180
    assert seen[-1].completions == 75
    assert interval.cost == pytest.approx(20.0 + 1e3 * 35 / 50)  # what the growth needs to drain


def test_interrupt_sees_failed_requests(target):
    target.failing_share = 0.25
    env = live(target)
    env.reset(seed=0)
    interval = env.run(0, Watch(lambda progress: "they fail" if progress.failures >= 10 else ""))
    assert interval.measurement.aborted == "they fail"
    assert interval.measurement.failures < 0.25 * 40 * 4
    assert interval.measurement.failure_share == pytest.approx(0.25, abs=0.05)


def test_an_interval_interrupted_while_it_settles_is_measured_from_its_start(target):
    env = live(target, settle_s=3.0)
    env.reset(seed=0)
    measurement = env.run(0, Watch(lambda progress: "stop")).measurement
    assert measurement.aborted == "stop"
    assert measurement.duration_s == pytest.approx(0.5)


def test_a_quiet_change_reads_little(target):
    env = live(target)
    env.reset(seed=0)
    target.reads = target.glances = 0
    env.step(env.space.action(0))
    assert (target.reads, target.glances) == (3, 0)
    env.run(1, Watch(lambda progress: ""))
    assert (target.reads, target.glances) == (6, 8)  # each half second but those of the reads


def test_a_step_without_a_change_goes_on_from_the_last_reading(target, clock):
    env = live(target)
    env.reset(seed=0)
    env.step(env.space.action(0))
    target.reads, applied = 0, len(target.applied)
    began_s = clock.now_s
    clock.sleep(0.25)  # the agent thinks
    _, _, _, _, info = env.step(env.space.action(0))
    assert clock.now_s - began_s == pytest.approx(5.0)
    assert info["measurement"].duration_s == pytest.approx(5.0)
    assert info["measurement"].arrivals == pytest.approx(200, abs=1)
    assert info["apply_ms"] == 0.0
    assert (target.reads, len(target.applied)) == (1, applied)


def test_a_step_after_a_long_pause_settles_again(target, clock):
    env = live(target)
    env.reset(seed=0)
    env.step(env.space.action(0))
    clock.sleep(60.0)
    assert env.step(env.space.action(0))[4]["measurement"].duration_s == pytest.approx(4.0)


def test_a_step_after_an_aborted_one_settles_again(target):
    env = live(target)
    env.reset(seed=0)
    env.run(0, Watch(lambda progress: "stop"))
    assert env.step(env.space.action(0))[4]["measurement"].duration_s == pytest.approx(4.0)


def test_a_share_of_an_interval_settles_as_long_and_is_measured_for_shorter(target, clock):
    env = live(target)
    env.reset(seed=0)
    half = Watch(share=0.5)
    interval = env.run(0, half)
    assert interval.measurement.duration_s == pytest.approx(2.0)
    assert interval.share == env._info(interval)["share"] == 0.5
    assert env.run(0, half).measurement.duration_s == pytest.approx(2.5)
    began_s = clock.now_s
    assert env.step(env.space.action(0))[4]["measurement"].duration_s == pytest.approx(5.0)
    assert clock.now_s - began_s == pytest.approx(5.0)


@pytest.mark.parametrize(("share", "ends_at"), [(1.0, 0.5), (0.3, 0.3)])
def test_an_interval_ends_once_it_has_told_enough(target, share, ends_at):
    env = live(target)
    env.reset(seed=0)
    seen = []

    def enough(so_far):
        seen.append(so_far)
        return so_far.share == 0.5

    interval = env.run(3, Watch(share=share, enough=enough))
    assert [so_far.share for so_far in seen] == [look for look in (0.25, 0.5) if look <= ends_at]
    assert seen[0].cost == pytest.approx(interval.cost)
    assert seen[0].completions == pytest.approx(40, abs=1)
    assert interval.measurement.duration_s == pytest.approx(4 * ends_at)
    assert not interval.measurement.aborted
    assert interval.share == ends_at
    assert "share" not in env.step(env.space.action(0))[4]


def test_a_whole_page_is_glanced_at_each_second_after_a_change_and_not_otherwise(target):
    target.reloads = True
    env = live(target)
    env.reset(seed=0)
    watched = Watch(lambda progress: "")
    target.reads = target.glances = 0
    env.run(0, watched)
    assert (target.reads, target.glances) == (3, 4)
    env.run(0, watched)
    assert (target.reads, target.glances) == (4, 4)


def test_glances_at_a_whole_page_tell_how_unevenly_requests_came(target):
    target.reloads = True
    env = live(target, interval_s=10.0)
    env.reset(seed=0)
    seen = env.run(0, Watch(lambda progress: "")).measurement
    assert 0 <= seen.dispersion < 0.1  # they came at a steady rate
    assert seen.arrival_summary == NOT_TOLD
    assert math.isnan(env.run(0, Watch(lambda progress: "")).measurement.dispersion)  # without glances


def test_settling_lasts_until_new_instances_have_run_their_first_batches(target, clock):
    target.reloads = True
    target.rate_per_s = 4.0
    env = live(target)
    env.reset(seed=0)
    began_s = clock.now_s
    _, _, _, _, info = env.step(env.space.action(env.space.number({"instances": 3, "max_batch_size": 4})))
    assert clock.now_s - began_s == pytest.approx(3 + 4)  # 9 batches of 3 instances at 4 a second, then 4 s
    assert info["measurement"].duration_s == pytest.approx(4.0)
    env.step(env.space.action(env.space.number({"instances": 1, "max_batch_size": 4})))
    assert clock.now_s - began_s == pytest.approx(3 + 4 + 5)  # instances that end are not cold
    _, _, _, _, info = env.step(env.space.action(0))  # a new load of 1 instance, whose 3 batches take 0.75 s
    assert clock.now_s - began_s == pytest.approx(3 + 4 + 5 + 6)
    target.rate_per_s = 0.5
    env.step(env.space.action(8))  # 9 batches would take 18 s
    assert clock.now_s - began_s == pytest.approx(3 + 4 + 5 + 6 + 16)


def test_settling_lasts_until_an_earlier_load_has_drained(target, clock):
    target.reloads = True
    env = live(target)
    env.reset(seed=0)
    target.draining = 175.0  # at 50 a second beside the 40 of the new load
    began_s = clock.now_s
    _, _, _, _, info = env.step(env.space.action(0))
    assert clock.now_s - began_s == pytest.approx(4 + 4)  # 3.5 s, seen each second
    assert info["measurement"].arrivals == pytest.approx(160, abs=1)


def test_without_traffic_there_are_no_arrivals_and_no_cost(target):
    target.rate_per_s = 0.0
    env = live(target)
    observation, info = env.reset(seed=0)
    assert info["measurement"].arrivals == 0
    assert math.isnan(info["cost"])
    _, reward, _, _, _ = env.step(env.space.action(1))
    assert reward == 0.0
    assert env.observation_space.contains(observation)


def test_advise_changes_nothing(target):
    env = live(target, advise=True)
    env.reset(seed=0)
    env.step(env.space.action(env.start))
    assert target.applied == []


def test_a_server_that_tells_no_knobs_is_observed(target):
    target.in_force, target.found = {}, {}
    env = LiveServing(target, advise=True, clock=target.clock, sleep=target.clock.sleep)
    with pytest.raises(ValueError, match="has no knob instances; it has none"):
        LiveServing(target, clock=target.clock, sleep=target.clock.sleep)
    assert len(env.space) == 1
    assert env.reset(seed=0)[1]["measurement"].arrivals == pytest.approx(160, abs=1)
    assert env.step(env.space.action(0))[4]["measurement"].arrivals == pytest.approx(200, abs=1)
    assert target.applied == []


def test_the_space_must_be_the_targets(target):
    with pytest.raises(ValueError, match="has no knob intra_op_threads; it has instances, max_batch_size"):
        live(target, "intra_op_threads=1,2")
    with pytest.raises(ValueError, match=r"no knob thread.*known knobs: instances"):
        live(target, "thread=1,2")
    with pytest.raises(ValueError, match="instances must be from 1 to 64, got 100"):
        live(target, "instances=1,100")


def test_a_percentile_limit_needs_percentiles(target):
    target.has_page = False
    with pytest.raises(ValueError, match=r"no latency percentiles.* an rrl-tap .* --bench"):
        live(target, objective=StrictSLO(100.0))
    live(target)  # the mean needs none


@pytest.mark.parametrize("bad", [{"settle_s": 5.0}, {"settle_s": -1.0}, {"poll_s": 0.0}, {"interval_s": 0.5}])
def test_an_interval_must_leave_something_to_measure(target, bad):
    with pytest.raises(ValueError, match="0 <= settle_s < interval_s and poll_s > 0"):
        live(target, **bad)


def test_gymnasiums_checker_is_content(target):
    env = gym.make(
        "rrl/LiveServing-v0", target=target, space=SPACE, clock=target.clock, sleep=target.clock.sleep
    )
    check_env(env.unwrapped, skip_render_check=True)


def test_closing_closes_the_target(target):
    live(target).close()
    assert target.closed


def test_the_change_after_an_aborted_interval_is_counted_from_its_end(target, clock):
    env = live(target)
    env.reset(seed=0)
    env.step(env.space.action(8))
    assert env.run(0, Watch(lambda progress: "the queue is running away")).measurement.aborted
    began_s = clock.now_s
    target.rate_per_s = 60.0
    _, _, _, _, info = env.step(env.space.action(8))
    settled_s = clock.now_s - began_s - info["measurement"].duration_s
    assert info["settling"].duration_s == pytest.approx(settled_s)
    assert info["settling"].arrivals == pytest.approx(60 * info["settling"].duration_s, abs=2)
