"""What is counted for the whole cluster is shared out by all fronts alike, without a word between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.server.workers.share import ALL, Share

counts, fronts = st.integers(0, 1000), st.integers(1, 20)


def shares(of: int) -> list[Share]:
    return [Share(front, of) for front in range(of)]


@given(counts, fronts)
def test_the_parts_add_up_and_differ_by_one_at_most(count: int, fronts: int) -> None:
    parts = [share.of(count) for share in shares(fronts)]
    assert sum(parts) == count
    assert max(parts) - min(parts) <= 1
    assert min(parts) == shares(fronts)[0].least(count)


@given(st.lists(st.integers(0, 50), max_size=10), fronts)
def test_each_cpu_of_each_node_is_of_one_front(cpus: list[int], fronts: int) -> None:
    parts = [share.by_node(cpus) for share in shares(fronts)]
    assert [sum(each) for each in zip(*parts, strict=True)] == cpus
    assert [sum(part) for part in parts] == [share.of(sum(cpus)) for share in shares(fronts)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), fronts, st.data())
def test_a_node_that_comes_or_goes_changes_little_of_the_others(
    cpus: list[int], fronts: int, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(cpus) - 1))
    left = cpus[:gone] + cpus[gone + 1 :]
    for share in shares(fronts):
        parts = share.by_node(cpus)
        assert parts[:-1] == share.by_node(cpus[:-1])
        before = parts[:gone] + parts[gone + 1 :]
        for was, count, part in zip(before, left, share.by_node(left), strict=True):
            assert abs(was - part) <= (count % fronts > 0)


def test_the_only_front_has_all() -> None:
    assert ALL.of(7) == ALL.least(7) == 7
    assert ALL.by_node([2, 3]) == [2, 3]
