"""A new agent starts from an earlier journal by being taught its intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from rrl.agent import Agent, Transition, observe
from rrl.journal import Journal
from rrl.measurement import Measurement
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace
from rrl.tuning.pretraining import Pretraining, moved
from tests.rrl.test_journal import SPACE, header, record

LARGER = ConfigurationSpace.of(instances=[1, 2, 3], max_batch_size=[1, 2, 4, 8])


class Pupil(Agent):
    """Remembers what it is told, and when it was waited for."""

    def __init__(self) -> None:
        self.told: list[Transition] = []
        self.waited_after: list[int] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        return SPACE.action(0)

    def update(self, transition: Transition) -> None:
        self.told.append(transition)

    def finish_training(self) -> None:
        self.waited_after.append(len(self.told))


def written(folder: Path, records: list[Record], **changes: object) -> Pretraining:
    journal = Journal.create(folder, header(**changes))
    for each in records:
        journal.append(each)
    journal.close()
    return Pretraining.read(folder)


def a_gap() -> Record:
    whole = record()
    return replace(
        whole, transition=replace(whole.transition, measurement=replace(whole.measurement, gap="restarted"))
    )


def test_the_agent_is_taught_what_counts_in_order_and_its_training_is_waited_for(tmp_path: Path) -> None:
    pretraining = written(tmp_path, [record(1), a_gap(), record(2, learned=False), record(3)])
    pupil = Pupil()
    assert pretraining.replay(pupil, SPACE) == 3
    assert [SPACE.number_of_action(t.action) for t in pupil.told] == [1, 2, 3]
    assert [math.isnan(t.cost) for t in pupil.told] == [False, True, False]
    assert pupil.told[0].measurement.telemetry == record().measurement.telemetry
    assert pupil.waited_after == [1, 2, 3]


def test_a_replay_ends_in_time_and_a_resumed_run_takes_over_as_much(tmp_path: Path) -> None:
    pretraining = written(tmp_path, [record(n) for n in range(6)])
    ticks = count()
    done = pretraining.replay(Pupil(), SPACE, limit_s=4.0, clock=lambda: float(next(ticks)))
    assert done == 3
    again = Pretraining.read_again(pretraining.to_json(done))
    pupil = Pupil()
    assert again.replay(pupil, SPACE, limit_s=math.inf) == 3
    assert [SPACE.number_of_action(t.action) for t in pupil.told] == [0, 1, 2]


def test_a_transition_means_the_same_configurations_on_a_larger_grid() -> None:
    before, after = {"instances": 1, "max_batch_size": 8}, {"instances": 2, "max_batch_size": 4}
    measurement = Measurement(10.0, 40, 40, 0)
    transition, expected = (
        Transition(
            observe(measurement, space, space.number(before)),
            space.action(space.number(after)),
            5.0,
            observe(measurement, space, space.number(after)),
            measurement,
        )
        for space in (SPACE, LARGER)
    )
    there = moved(transition, SPACE, LARGER)
    np.testing.assert_array_equal(there.action, expected.action)
    np.testing.assert_array_equal(there.observation, expected.observation)
    np.testing.assert_array_equal(there.next_observation, expected.next_observation)
    assert there.observation.dtype == np.float32
    assert there.cost == 5.0


def run(**changes: object) -> Header:
    return header(target="localhost:1", model="another", seed=9, **changes)


def test_values_added_as_the_run_starts_there_do_not_matter(tmp_path: Path) -> None:
    pretraining = written(tmp_path, [record()])
    pretraining.check_starts(run())
    pretraining.check_starts(run(space=LARGER, start={"instances": 3, "max_batch_size": 2}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent": "random"}, "another agent: guided, not random"),
        ({"objective": "strict-slo"}, "another objective: latency, not strict-slo"),
        ({"slo_p95_ms": 80.0}, "another p95 limit: none, not 80 ms"),
        (
            {"space": ConfigurationSpace.of(instances=[1, 2]), "start": {"instances": 1}},
            "another set of knobs: instances, max_batch_size, not instances",
        ),
        ({"space": LARGER}, "another grid: instances=1,2,max_batch_size=1,4,8, not instances=1,2,3,"),
    ],
)
def test_a_run_of_something_else_does_not_start_from_it(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match="--agent-from") as error:
        written(tmp_path, [record()]).check_starts(run(**changes))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_journal_without_a_decision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no decision to start from"):
        written(tmp_path, [a_gap()])


def test_a_journal_that_was_replaced_meanwhile_is_refused(tmp_path: Path) -> None:
    taken = written(tmp_path, [record(1), record(2)]).to_json(2)
    with pytest.raises(ValueError, match="not the one that this run started from"):
        Pretraining.read_again(taken | {"started_at": "2020-01-01T00:00:00+00:00"})
    with pytest.raises(ValueError, match="not the one that this run started from"):
        Pretraining.read_again(taken | {"records": 3})
