"""When a change has settled, by the readings since."""

from dataclasses import replace

import pytest

from envs.settling import Settling
from serving_adapter.target.reading import Reading


def reading(answered: int, pending: int = 0, in_flight: int | None = None) -> Reading:
    return Reading(
        at_s=0.0,
        success=answered,
        failure=0,
        inference_count=answered,
        execution_count=answered,
        request_s=0.0,
        queue_s=0.0,
        service_s=0.0,
        pending=pending,
        in_flight=in_flight,
    )


def over(*queue: int, instances: int = 2, max_batch_size: int = 8) -> bool:
    """After these lengths of the queue, each read 100 answers after the one before."""
    readings = [reading(100 * i, length) for i, length in enumerate(queue)]
    settling = Settling(readings[0], True, instances, max_batch_size, cold_instances=0)
    return settling.is_over(readings)


@pytest.mark.parametrize("max_batch_size", [1, 8, 64])
def test_a_queue_that_piled_up_must_have_drained(max_batch_size: int) -> None:
    assert not over(60, 42, max_batch_size=max_batch_size)
    assert not over(60, 42, 20, max_batch_size=max_batch_size)
    assert over(60, 42, 20, 4, max_batch_size=max_batch_size)


def test_a_short_queue_is_not_waited_for() -> None:
    assert over(4, 3)
    assert not over(5, 5 - 1, instances=1)
    assert over(5, 4, instances=2)


def test_a_queue_that_gets_no_shorter_is_the_configurations_own() -> None:
    assert over(60, 61)
    assert not over(60, 30, 31)
    assert over(60, 30, 31, 31)
    assert not over(60, 30, 31, 29)


def test_batches_in_service_are_no_queue_where_they_are_counted_with_it() -> None:
    readings = [reading(0, in_flight=100), reading(100, in_flight=20)]
    assert Settling(readings[0], True, 2, 8, cold_instances=0).is_over(readings)
    assert not Settling(readings[0], True, 2, 4, cold_instances=0).is_over(readings)


def test_what_was_queued_at_the_change_must_be_answered() -> None:
    readings = [reading(0, 120), reading(100, 3)]
    assert not Settling(readings[0], True, 2, 8, cold_instances=0).is_over(readings)
    assert Settling(readings[0], True, 2, 8, cold_instances=0).is_over([*readings, reading(120, 3)])


def test_a_new_load_settles_twice_as_long_as_a_change_in_place() -> None:
    in_place, loaded = (Settling(reading(0, 0), kind, 2, 8, cold_instances=1) for kind in (True, False))
    assert (in_place.at_least_s(1.5), loaded.at_least_s(1.5)) == (1.5, 3.0)


def test_cold_instances_must_have_run_three_batches_each() -> None:
    readings = [reading(0), reading(5)]
    settling = Settling(readings[0], True, 2, 8, cold_instances=1)
    assert not settling.is_over(readings)
    assert settling.is_over([*readings, reading(6)])


def test_processes_of_a_load_made_in_turns_are_cold_when_the_last_of_them_is_there() -> None:
    def after(executions: int) -> Reading:
        return replace(reading(executions), executions_since_load=executions)

    settling = Settling(after(20), False, 3, 8, cold_instances=3)
    assert not settling.is_over([after(20), after(25)])
    assert settling.is_over([after(20), after(29)])
