"""The rule of thumb proposes one configuration of the space, whatever is measured."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.rule_of_thumb import RuleOfThumb
from rrl.agent import OBSERVATION_FIELDS, Agent, Task, live, observe
from rrl.measurement import Measurement
from rrl.space import Configuration, ConfigurationSpace
from rrl.testing import Server, check_agent

TRITON = ConfigurationSpace.parse(
    "instances=1:4,intra_op_threads=1,2,max_batch_size=1,2,4,8,16,max_queue_delay_us=0,2000"
)
PAPERS = ConfigurationSpace.parse("inter_op_threads=1:10,intra_op_threads=1:10,instances=1:10")


def proposed(agent: Agent, space: ConfigurationSpace, found: Configuration | None = None) -> dict[str, int]:
    number = 0 if found is None else space.number(found)
    observation = observe(Measurement(1.0, 10, 10, 0), space, number)
    return space.configuration(space.number_of_action(agent.act(observation)))


def test_it_keeps_the_contract_of_an_agent() -> None:
    check_agent(lambda task, seed: RuleOfThumb(task))


def test_on_a_triton_it_proposes_an_instance_a_core_of_one_thread_and_batches_of_8_without_delay() -> None:
    assert proposed(RuleOfThumb(Task(TRITON, cores=2)), TRITON) == {
        "instances": 2,
        "intra_op_threads": 1,
        "max_batch_size": 8,
        "max_queue_delay_us": 0,
    }


@pytest.mark.parametrize(("cores", "instances"), [(6, 6), (10, 10), (16, 10), (None, 10)])
def test_on_the_papers_space_instances_are_the_cores_or_the_most_there_are(
    cores: int | None, instances: int
) -> None:
    expected = {"inter_op_threads": 1, "intra_op_threads": 1, "instances": instances}
    assert proposed(RuleOfThumb(Task(PAPERS, cores=cores)), PAPERS) == expected


def test_what_is_excluded_or_was_refused_gives_way_to_the_nearest_that_is_not() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 4], max_batch_size=[1, 4, 8])
    excluded = frozenset({space.number({"instances": 4, "max_batch_size": 8})})
    agent = RuleOfThumb(Task(space, cores=4, excluded=excluded))
    nearest = {"instances": 2, "max_batch_size": 8}  # ln(5/3) away; with batches of 4, ln(9/5)
    assert proposed(agent, space) == nearest
    agent.refused(space.number(nearest))
    assert proposed(agent, space) == {"instances": 4, "max_batch_size": 4}


def test_where_all_were_refused_what_was_found_stays() -> None:
    space = ConfigurationSpace.of(instances=[1, 2])
    agent = RuleOfThumb(Task(space, cores=2, excluded=frozenset({0, 1})))
    assert proposed(agent, space, {"instances": 1}) == {"instances": 1}


def test_a_knob_of_the_targets_own_keeps_the_value_found() -> None:
    space = ConfigurationSpace.of(instances=[1, 2], max_ongoing_requests=[5, 10, 20])
    agent = RuleOfThumb(Task(space, cores=2))
    found = {"instances": 1, "max_ongoing_requests": 10}
    assert proposed(agent, space, found) == {"instances": 2, "max_ongoing_requests": 10}
    list(live(agent, Server(space), 1))  # on which 5 are found
    assert proposed(agent, space, found)["max_ongoing_requests"] == 5


def test_it_never_moves_and_recommends_what_it_proposes() -> None:
    agent = RuleOfThumb(Task(TRITON, cores=2))
    assert agent.recommended() is None
    numbers = {TRITON.number_of_action(each.action) for each in live(agent, Server(TRITON), 10)}
    assert numbers == {agent.recommended()}


def test_a_space_without_any_of_its_knobs_is_refused() -> None:
    with pytest.raises(ValueError, match="none of which is among replicas; add one"):
        RuleOfThumb(Task(ConfigurationSpace.of(replicas=[1, 2])))


def test_its_actions_are_what_the_environment_takes() -> None:
    action = RuleOfThumb(Task(TRITON)).act(
        np.zeros(len(OBSERVATION_FIELDS) + len(TRITON.knobs), dtype=np.float32)
    )
    assert action.dtype == np.int64
