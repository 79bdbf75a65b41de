"""Coding groups: exact for a linear model whatever is lost, complete whatever comes first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.parity.coding import ENCODERS
from serving_adapter.parity.groups import CodingGroup, CodingGroups, Member, repeated_to

WIDTH = 3
MATRIX = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]], np.float32)


def linear(queries: np.ndarray) -> dict[str, np.ndarray]:
    """A linear model is its own parity model."""
    return {"y": queries @ MATRIX}


def member(rows: int, first: float = 1.0) -> Member:
    values = first + np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
    return Member(rows, lambda: {"x": values**2})


def parity_outputs(group: CodingGroup, row: int) -> dict[str, np.ndarray]:
    parity = np.zeros((group.rows, WIDTH), np.float32)
    group.encode(row, "x", ENCODERS["sum"], parity)
    return linear(parity)


@st.composite
def groups_and_losses(draw):
    k = draw(st.integers(2, 5))
    r = draw(st.integers(1, min(3, k)))
    rows = draw(st.lists(st.integers(1, 4), min_size=k, max_size=k))
    lost = draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=r))
    parities = draw(st.sets(st.integers(0, r - 1), min_size=len(lost), max_size=r))
    return k, r, rows, lost, parities


@given(groups_and_losses())
def test_what_is_lost_is_reconstructed_exactly_for_a_linear_model(case):
    k, r, rows, lost, parities = case
    group = CodingGroup(k, r)
    for i, count in enumerate(rows):
        group.add(member(count, 1.0 + i))
    for i, there in enumerate(group.members):
        there.outputs = None if i in lost else linear(there.queries["x"])
    for row in parities:
        group.parities[row] = parity_outputs(group, row)
    assert group.is_decodable
    reconstructed = group.reconstruct()
    assert set(reconstructed) == {group.members[i] for i in lost}
    for missing, outputs in reconstructed.items():
        expected = linear(missing.queries["x"])["y"]
        assert outputs["y"].shape == expected.shape
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-2, atol=0.5)


@pytest.mark.parametrize(("k", "r"), [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_a_group_is_decodable_from_the_moment_that_k_outputs_of_any_kind_are_there(k, r):
    events = [("answer", i) for i in range(k)] + [("parity", j) for j in range(r)]
    for order in itertools.permutations(events):
        group = CodingGroup(k, r)
        for i in range(k):
            group.add(member(1, 1.0 + i))
        for count, (kind, i) in enumerate(order, 1):
            if kind == "answer":
                group.members[i].outputs = linear(group.members[i].queries["x"])
            else:
                group.parities[i] = parity_outputs(group, i)
            all_answered = all(m.outputs is not None for m in group.members)
            assert group.is_decodable == (count >= k and not all_answered)


def test_an_unfilled_group_is_not_decodable():
    group = CodingGroup(3, 1)
    group.add(member(1))
    group.parities[0] = linear(np.zeros((1, WIDTH), np.float32))
    assert not group.is_decodable


def test_members_are_grouped_in_the_order_of_dispatch():
    groups = CodingGroups(2, 1)
    members = [member(1, float(i)) for i in range(5)]
    full = [groups.add(m) for m in members]
    assert [group and group.members for group in full] == [
        None,
        members[0:2],
        None,
        members[2:4],
        None,
    ]


def test_a_shorter_batch_is_repeated_from_its_beginning():
    rows = np.array([[1.0], [2.0], [3.0]])
    assert repeated_to(5, rows).ravel().tolist() == [1, 2, 3, 1, 2]
    assert repeated_to(3, rows) is rows


def test_a_group_that_waits_too_long_is_filled_with_members_answered_before():
    groups = CodingGroups(3, 1)
    earlier = [member(1, float(i)) for i in range(3)]
    for m in earlier:
        groups.add(m)
        groups.member_answered(m, linear(m.queries["x"]))
    late = member(1, 9.0)
    groups.add(late)
    group = groups.flush()
    assert group is not None
    assert group.missing == [late]
    group.parities[0] = parity_outputs(group, 0)
    np.testing.assert_allclose(
        group.reconstruct()[late]["y"], linear(late.queries["x"])["y"], rtol=1e-4, atol=1e-3
    )
    assert groups.open is None
    assert [m.group for m in earlier] == [earlier[0].group] * 3  # they stay in their own


def test_a_group_is_given_up_where_too_few_were_answered_before_or_nothing_is_missing():
    groups = CodingGroups(2, 1)
    assert groups.flush() is None  # there is none
    first = member(1)
    groups.add(first)
    assert groups.flush() is None  # nobody to fill it with
    groups.member_answered(first, linear(first.queries["x"]))
    second = member(1, 2.0)
    groups.add(second)
    groups.member_answered(second, linear(second.queries["x"]))
    assert groups.flush() is None  # it has its answer
    assert groups.open is None


@pytest.mark.parametrize(
    ("factor", "is_reconstructed"), [(1e-3, True), (100.0, True), (3e9, False), (np.nan, False)]
)
def test_a_query_that_a_much_larger_one_swallows_is_not_reconstructed(factor, is_reconstructed):
    group = CodingGroup(2, 1)
    small = member(2)
    other = Member(2, lambda: {"x": small.queries["x"] * np.array([[1.0], [factor]], np.float32)})
    for each in (small, other):
        group.add(each)
    other.outputs = linear(other.queries["x"])
    group.parities[0] = parity_outputs(group, 0)
    reconstructed = group.reconstruct()
    assert (small in reconstructed) == is_reconstructed
    if is_reconstructed:
        np.testing.assert_allclose(reconstructed[small]["y"], linear(small.queries["x"])["y"], rtol=1e-3)


@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize("odd", ["member", "parity"])
def test_nothing_is_reconstructed_from_outputs_of_unequal_sizes(odd, items):
    """A size is described by an example, and an answer may disprove it."""
    group = CodingGroup(2, 1)
    known, missing = member(1), member(1, 2.0)
    for each in (known, missing):
        group.add(each)
    outputs, parity = linear(known.queries["x"]), parity_outputs(group, 0)
    width = MATRIX.shape[1]
    shorter = {"y": np.ones((1, items, width), np.float32)}
    longer = {"y": np.ones((1, 3, width), np.float32)}
    known.outputs, group.parities[0] = (shorter, longer) if odd == "member" else (longer, shorter)
    assert group.reconstruct() == {}
    known.outputs, group.parities[0] = outputs, parity
    assert set(group.reconstruct()) == {missing}


def test_the_large_query_itself_is_reconstructed():
    group = CodingGroup(2, 1)
    small, large = member(1), member(1, 1e6)
    for each in (small, large):
        group.add(each)
    small.outputs = linear(small.queries["x"])
    group.parities[0] = parity_outputs(group, 0)
    np.testing.assert_allclose(group.reconstruct()[large]["y"], linear(large.queries["x"])["y"], rtol=1e-5)
