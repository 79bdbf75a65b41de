"""Several models share one budget of cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrl.command_line.opening.core_budget import cores_used, over_budget, share
from rrl.space import ConfigurationSpace

configurations = st.fixed_dictionaries(
    {"instances": st.integers(1, 8), "intra_op_threads": st.integers(1, 8)},
    optional={"inter_op_threads": st.integers(1, 4), "max_batch_size": st.integers(1, 64)},
)


def test_a_model_may_use_what_the_others_leave():
    others = [{"instances": 2, "intra_op_threads": 2, "max_batch_size": 8}, {"instances": 1}]
    assert share(8, {"instances": 1}, others) == 3


@given(st.integers(1, 32), configurations, st.lists(configurations, max_size=3))
def test_what_was_found_always_fits(budget, found, others):
    assert share(budget, found, others) >= cores_used(found)


@given(st.integers(1, 32), st.lists(configurations, min_size=1, max_size=4))
def test_models_that_fit_the_budget_still_do_when_one_takes_its_share(budget, in_force):
    if sum(map(cores_used, in_force)) <= budget:
        first, *others = in_force
        assert share(budget, first, others) + sum(map(cores_used, others)) <= budget


@given(st.integers(1, 40))
def test_over_budget_are_exactly_those_with_more_threads(cores):
    space = ConfigurationSpace.of(instances=[1, 2, 4], intra_op_threads=[1, 2], max_batch_size=[1, 8])
    over = over_budget(space, cores, space.configuration(0))
    for number in range(len(space)):
        assert (number in over) == (cores_used(space.configuration(number)) > cores)


def test_threads_that_are_not_tuned_count_too():
    space = ConfigurationSpace.of(instances=[1, 2, 4])
    assert over_budget(space, 4, {"instances": 1, "intra_op_threads": 4}) == {1, 2}


def test_without_a_core_there_is_no_budget():
    with pytest.raises(ValueError, match="at least 1 core, got 0"):
        share(0, {"instances": 1}, [])
