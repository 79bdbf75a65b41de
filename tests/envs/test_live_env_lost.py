"""What the environment makes of a target that is lost, restarts, or refuses a configuration."""

import math

import pytest

from envs.live import LiveServing
from rrl.interval import Watch
from rrl.measurement import NODES_CHANGED, nodes_changed
from serving_adapter.target import (
    LeaseTaken,
    LostInChange,
    ModelAbsent,
    NoSuchKnob,
    NotPutBack,
    Overtaken,
    TargetError,
    TargetLost,
)
from tests.support.runs.fake_target import live


def test_a_lost_target_is_waited_for_and_gets_its_configuration_again(target, clock):
    env = live(target)
    env.reset(seed=0)

    def crash():
        target.restart()
        target.lose(20.0)

    clock.after(3.0, crash)
    _, reward, _, _, info = env.step(env.space.action(0))
    assert info["measurement"].gap == "the target is lost (connection refused)"
    assert math.isnan(info["cost"])
    assert reward == 0.0
    assert target.in_force == {"instances": 1, "max_batch_size": 1}
    assert 2 <= target.connects < 15
    _, _, _, _, info = env.step(env.space.action(0))
    assert info["measurement"].gap == ""
    assert info["cost"] == pytest.approx(20.0)


def test_a_target_that_is_back_and_refuses_the_configuration_is_not_asked_for_it_again_and_again(
    target, clock
):
    env = live(target)
    env.reset(seed=0)
    asked: list[object] = []

    def crash():
        target.restart()
        target.lose(20.0)
        target.apply = refuse

    def refuse(configuration):
        if clock.now_s < back_s:
            raise TargetLost("the target is lost (connection refused)")
        asked.append(configuration)
        raise TargetError("no memory (the previous configuration is in force)")

    back_s = clock.now_s + 3.0 + 20.0
    clock.after(3.0, crash)
    assert "lost" in env.step(env.space.action(0))[4]["measurement"].gap
    assert len(asked) == 1
    info = env.step(env.space.action(0))[4]
    assert info["refused"]
    assert info["measurement"].gap == "no memory (the previous configuration is in force)"


def test_a_target_that_comes_back_with_nothing_in_force_is_an_error_at_once(target, clock):
    env = live(target)
    env.reset(seed=0)

    def crash():
        target.restart()
        target.lose(20.0)
        target.apply = break_it

    def break_it(configuration):
        raise NotPutBack("no memory (the previous configuration could not be put back: ...)")

    clock.after(3.0, crash)
    with pytest.raises(NotPutBack):
        env.step(env.space.action(0))


def test_a_target_that_stays_away_is_given_up(target, clock):
    env = live(target, reconnect_s=30.0)
    env.reset(seed=0)
    clock.after(1.0, lambda: target.lose(1e9))
    began_s = clock.now_s
    with pytest.raises(TargetLost, match="did not come back within 30 s: the target does not answer"):
        env.step(env.space.action(0))
    assert clock.now_s - began_s < 40.0


def test_a_configuration_that_brings_the_target_down_is_not_put_in_force_again(target):
    env = live(target)
    env.reset(seed=0)
    accept = target.apply

    def die(configuration):
        target.restart()
        target.lose(20.0)
        raise LostInChange("the target is lost in the middle of a change")

    target.apply = die
    assert "in the middle" in env.step(env.space.action(0))[4]["measurement"].gap
    assert target.in_force == target.found
    target.apply = accept
    assert env.step(env.space.action(0))[4]["measurement"].gap == ""


def test_a_target_that_cannot_be_put_back_is_an_error_at_once(target):
    env = live(target)
    env.reset(seed=0)

    def break_it(configuration):
        raise NotPutBack("no memory (the previous configuration could not be put back: ...)")

    target.apply = break_it
    with pytest.raises(NotPutBack):
        env.step(env.space.action(0))


@pytest.mark.parametrize("after_s", [0.5, 3.0])
def test_a_quick_restart_leaves_a_gap_and_the_next_step_configures_again(target, clock, after_s):
    env = live(target)
    env.reset(seed=0)
    clock.after(after_s, target.restart)
    _, _, _, _, info = env.step(env.space.action(0))
    assert "restarted" in info["measurement"].gap
    assert target.in_force == target.found
    _, _, _, _, info = env.step(env.space.action(0))
    assert info["measurement"].gap == ""
    assert target.in_force == {"instances": 1, "max_batch_size": 1}


def test_a_configuration_changed_by_another_client_leaves_a_gap(target, clock):
    env = live(target)
    env.reset(seed=0)
    clock.after(3.0, lambda: target.in_force.update(instances=7))
    _, _, _, _, info = env.step(env.space.action(0))
    assert "another client" in info["measurement"].gap
    assert "instances 1 -> 7" in info["measurement"].gap
    assert info["measurement"].gap_by_others


@pytest.mark.parametrize("after_s", [0.5, 3.0])  # while it settles, and after
def test_a_node_that_dies_leaves_a_gap_by_others_and_what_is_in_force(target, clock, after_s):
    target.cluster_changed_share = 0
    env = live(target)
    env.reset(seed=0)
    clock.after(after_s, lambda: setattr(target, "cluster_changed_share", 0.25))
    measurement = env.step(env.space.action(0))[4]["measurement"]
    assert measurement.gap == NODES_CHANGED
    assert nodes_changed(measurement)
    info = env.step(env.space.action(0))[4]
    assert info["measurement"].gap == ""
    assert not info["measurement"].gap_by_others
    assert not info["changed"]


def test_what_another_client_set_beside_a_node_that_died_is_told_and_kept(target, clock):
    target.cluster_changed_share = 0
    env = live(target)

    def die():
        target.cluster_changed_share += 0.25

    def die_and_set():
        die()
        target.in_force.update(instances=3)

    clock.after(3.0, die_and_set)
    interval = env.run(0, Watch(gives_way=True))
    assert "another client" in interval.measurement.gap
    assert not nodes_changed(interval.measurement)
    assert interval.set_by_others == {"instances": 3, "max_batch_size": 1}
    target.in_force.update(instances=2)
    die()
    interval = env.run(1, Watch(gives_way=True))
    assert interval.gave_way
    assert interval.set_by_others == {"instances": 2, "max_batch_size": 1}


def test_what_another_client_set_since_the_last_look_is_told_and_kept_where_the_run_gives_way(target, clock):
    env = live(target)
    env.run(0, Watch(gives_way=True))
    target.in_force.update(instances=3)
    interval = env.run(1, Watch(gives_way=True))
    assert interval.gave_way
    assert interval.set_by_others == {"instances": 3, "max_batch_size": 1}
    assert interval.measurement.gap_by_others
    assert target.in_force["instances"] == 3
    interval = env.run(1, Watch(gives_way=True))  # which is not told of twice
    assert not interval.gave_way
    assert target.in_force == {"instances": 1, "max_batch_size": 2}
    target.in_force.update(instances=3)
    assert env.run(2).changed
    assert target.in_force == {"instances": 1, "max_batch_size": 4}


def overtaken(target, **theirs):
    """Somebody else's change comes into force in the middle of each of the target's own."""

    def apply(configuration):
        target.in_force.update(theirs)
        raise Overtaken("another client set something else while 'm' was configured, which stays in force")

    target.apply = apply


@pytest.mark.parametrize("gives_way", [True, False])
def test_what_another_client_sets_in_the_middle_of_a_change_is_told_and_kept(target, clock, gives_way):
    env = live(target)
    env.run(0, Watch(gives_way=gives_way))
    accept = target.apply
    overtaken(target, instances=3)
    interval = env.run(1, Watch(gives_way=gives_way))
    assert interval.gave_way
    assert interval.changed
    assert not interval.refused
    assert interval.set_by_others == {"instances": 3, "max_batch_size": 1}
    assert interval.replaced == {"instances": 1, "max_batch_size": 1}
    assert "another client set something else" in interval.measurement.gap
    assert interval.measurement.gap_by_others
    assert target.in_force["instances"] == 3
    target.apply = accept
    assert not env.run(1, Watch(gives_way=gives_way)).measurement.gap
    assert target.in_force == {"instances": 1, "max_batch_size": 2}


def test_so_it_is_where_only_what_is_not_tuned_was_set_and_nothing_is_gone_on_from(target, clock):
    target.found["max_queue_delay_us"] = target.in_force["max_queue_delay_us"] = 0
    env = live(target)
    env.run(0)
    overtaken(target, max_queue_delay_us=5000)
    interval = env.run(1)
    assert interval.gave_way
    assert not interval.set_by_others


def test_what_another_client_sets_while_a_target_that_is_back_is_configured_is_kept_as_well(target, clock):
    env = live(target)
    env.run(0, Watch(gives_way=True))

    def crash():
        target.restart()
        target.lose(20.0)
        overtaken(target, instances=3)

    clock.after(3.0, crash)
    interval = env.run(0, Watch(gives_way=True))
    assert interval.gave_way
    assert interval.set_by_others == {"instances": 3, "max_batch_size": 3}


def test_what_a_restarted_server_has_is_nobodys_choice(target, clock):
    env = live(target)
    env.run(0, Watch(gives_way=True))
    clock.sleep(1.0)
    target.restart()
    interval = env.run(1, Watch(gives_way=True))
    assert not interval.gave_way
    assert not interval.set_by_others
    assert target.in_force == {"instances": 1, "max_batch_size": 2}


def test_hands_off_nothing_is_changed_and_what_is_in_force_is_told(target, clock):
    env = live(target)
    env.run(0, Watch(gives_way=True))
    target.in_force.update(instances=7)
    clock.after(2.0, lambda: target.lose(10.0))
    lost, seen = (env.run(0, Watch(hands_off=True)) for _ in range(2))
    assert lost.measurement.gap
    assert seen.set_by_others == {"instances": 7, "max_batch_size": 1}
    assert seen.measurement.gap_by_others
    assert target.in_force["instances"] == 7


def test_a_knob_that_is_not_tuned_and_that_another_client_changes_stays_so_and_is_told_once(target, clock):
    target.found["max_queue_delay_us"] = target.in_force["max_queue_delay_us"] = 0
    env = live(target)
    env.reset(seed=0)
    clock.after(3.0, lambda: target.in_force.update(max_queue_delay_us=5000))
    gaps = [env.step(env.space.action(0))[4]["measurement"].gap for _ in range(2)]
    assert "what is not tuned" in gaps[0]
    assert "delay 0 -> 5 ms" in gaps[0]
    assert gaps[1] == ""
    assert target.in_force["max_queue_delay_us"] == 5000


def test_a_model_that_somebody_unloads_is_waited_for_and_no_configuration_is_blamed(target, clock):
    env = live(target)
    env.reset(seed=0)
    target.lost_by = ModelAbsent("the model is not loaded")
    clock.after(3.0, lambda: target.lose(10.0))
    _, _, _, _, info = env.step(env.space.action(0))
    assert info["measurement"].gap == "the model is not loaded"
    assert info["measurement"].gap_by_others
    assert env.step(env.space.action(0))[4]["measurement"].gap == ""


def test_a_refused_configuration_leaves_a_gap_and_many_in_a_row_are_an_error(target):
    env = live(target)
    env.reset(seed=0)
    accept = target.apply

    def refuse(configuration):
        raise TargetError("no memory for 4 workers")

    target.apply = refuse
    for _ in range(3):
        assert env.step(env.space.action(0))[4]["measurement"].gap == "no memory for 4 workers"
    with pytest.raises(TargetError, match="no memory"):
        env.step(env.space.action(0))
    target.apply = accept
    assert env.step(env.space.action(0))[4]["measurement"].gap == ""


def test_smaller_batches_that_would_refuse_requests_are_refused_as_often_as_they_are_tried(target):
    env = LiveServing(
        target, "instances=1:2,max_batch_size=1:4", clock=target.clock, sleep=target.clock.sleep
    )
    env.reset(seed=0)
    bears, refuses = (env.space.number({"instances": 2, "max_batch_size": size}) for size in (3, 1))
    assert env.step(env.space.action(refuses))[4]["measurement"].gap == ""
    env.step(env.space.action(bears))
    target.hold_several_items = True
    for _ in range(5):  # more than a server may refuse in a row
        info = env.step(env.space.action(refuses))[4]
        assert info["refused"]
        assert "some requests held several items" in info["measurement"].gap
        assert target.in_force["max_batch_size"] == 3
    assert env.step(env.space.action(bears))[4]["measurement"].gap == ""


def test_a_restart_after_which_smaller_batches_would_refuse_requests_is_lived_through(target):
    env = LiveServing(
        target, "instances=1:2,max_batch_size=1:4", clock=target.clock, sleep=target.clock.sleep
    )
    env.reset(seed=0)
    small = env.space.action(env.space.number({"instances": 2, "max_batch_size": 1}))
    env.step(small)
    target.restart()
    target.lose(8.0)  # beyond the interval
    target.hold_several_items = True
    assert "is lost" in env.step(small)[4]["measurement"].gap
    assert env.step(small)[4]["refused"]


def test_a_configuration_refused_at_once_is_an_error(target):
    def refuse(configuration):
        raise TargetError("control is locked")

    target.apply = refuse
    with pytest.raises(TargetError, match="locked"):
        live(target).reset(seed=0)


def taken(configuration):
    raise LeaseTaken("'m' is leased to rrl-tune of bob on b")


def test_a_lease_that_another_tuner_has_ends_the_run_and_no_configuration_is_blamed(target, clock):
    env = live(target)
    env.reset(seed=0)
    target.apply = taken
    with pytest.raises(LeaseTaken):
        env.step(env.space.action(0))


def test_nor_is_one_where_the_other_tuner_was_first_when_the_target_came_back(target, clock):
    env = live(target)
    env.reset(seed=0)
    env.step(env.space.action(0))
    clock.after(2.0, lambda: target.lose(20.0))
    clock.after(3.0, lambda: setattr(target, "apply", taken))
    with pytest.raises(LeaseTaken):
        env.step(env.space.action(0))


def test_a_knob_that_somebody_takes_away_leaves_a_gap_and_ends_the_run(target, clock):
    env = live(target)
    env.reset(seed=0)
    env.step(env.space.action(0))
    clock.after(3.0, lambda: target.in_force.pop("max_batch_size"))
    measurement = env.step(env.space.action(0))[4]["measurement"]
    assert measurement.gap.endswith("took away what is tuned, within the interval: batch 1")
    assert measurement.gap_by_others
    with pytest.raises(NoSuchKnob, match="no knob max_batch_size"):
        env.step(env.space.action(0))


def test_an_interval_in_which_this_machine_slept_tells_nothing(target, clock):
    slept_s = [100.0]
    env = live(target, suspended=lambda: slept_s[0])
    env.reset(seed=0)
    assert env.step(env.space.action(0))[4]["measurement"].gap == ""

    def sleep():  # the server goes on, and no clock of ours does
        slept_s[0] += 3600.0
        target.arrived += 40.0 * 3600.0
        target.done += 40.0 * 3600.0

    for configuration in (0, 1):
        clock.after(2.0, sleep)
        info = env.step(env.space.action(configuration))[4]
        assert info["measurement"].gap == "this machine was suspended for 3600 s within the interval"
        assert info["measurement"].gap_by_others
        assert "settling" not in info
        assert env.step(env.space.action(configuration))[4]["measurement"].arrivals < 250
