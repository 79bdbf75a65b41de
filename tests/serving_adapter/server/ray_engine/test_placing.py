"""Workers are spread over nodes in proportion to their processors, and no more than they bear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.server.ray_engine.placing import Unplaceable, check_fronts, place
from serving_adapter.server.workers.parallelism import ANYWHERE, PACK, SPREAD, NodePlacement
from serving_adapter.server.workers.share import ALL, Share

ADDRESS = "10.0.0.1:6379"


class Machine:
    """A node with workers of some placement on it."""

    def __init__(
        self,
        cpus: float,
        workers: int = 0,
        placement: NodePlacement = ANYWHERE,
        name: str = "",
        is_home: bool = False,
        began_s: float = 0.0,
    ) -> None:
        self.id, self.cpus, self.workers = name or str(id(self)), cpus, [placement] * workers
        self.is_home, self.began_s = is_home, began_s

    def worker_count(self, placement: NodePlacement | None = None) -> int:
        return len(self.workers) if placement is None else self.workers.count(placement)


def placed(
    nodes: list[Machine], instances: int, placement: NodePlacement = ANYWHERE, share: Share = ALL
) -> list[int]:
    """How many workers of it each node has, once all instances were placed one by one."""
    for _ in range(instances):
        chosen = place(nodes, instances, placement, ADDRESS, share)
        assert len(set(map(id, chosen))) == placement.nodes_per_unit
        for node in chosen:
            node.workers.append(placement)
    return [node.worker_count(placement) for node in nodes]


@pytest.mark.parametrize(
    ("cpus", "instances", "placement", "expected"),
    [
        ((2, 2), 1, ANYWHERE, [1, 0]),
        ((2, 2), 2, ANYWHERE, [1, 1]),
        ((2, 2), 4, ANYWHERE, [2, 2]),
        ((4, 2), 3, ANYWHERE, [2, 1]),
        ((8, 2), 5, ANYWHERE, [4, 1]),
        ((2, 2), 2, NodePlacement(0, PACK), [2, 0]),
        ((2, 2), 3, NodePlacement(0, PACK), [2, 1]),
        ((1, 4, 2), 5, NodePlacement(0, PACK), [0, 4, 1]),
        ((2, 2, 2), 4, NodePlacement(2, SPREAD), [2, 2, 0]),
        ((1, 2, 4), 3, NodePlacement(2, SPREAD), [0, 1, 2]),
        ((2, 4), 2, NodePlacement(1, SPREAD), [0, 2]),
        ((2, 2), 2, NodePlacement(nodes_per_unit=2), [2, 2]),
        ((2, 2, 2), 3, NodePlacement(nodes_per_unit=2), [2, 2, 2]),
        ((1, 4, 2), 2, NodePlacement(nodes_per_unit=2), [0, 2, 2]),
        ((2, 2, 2), 2, NodePlacement(0, PACK, nodes_per_unit=2), [2, 2, 0]),
        ((2, 2, 2), 2, NodePlacement(2, SPREAD, nodes_per_unit=2), [2, 2, 0]),
    ],
)
def test_each_node_gets_its_share(
    cpus: tuple[int, ...], instances: int, placement: NodePlacement, expected: list[int]
) -> None:
    assert placed([Machine(count) for count in cpus], instances, placement) == expected


def test_more_instances_than_processors_are_refused_in_one_sentence() -> None:
    nodes = [Machine(2), Machine(1)]
    with pytest.raises(Unplaceable) as caught:
        placed(nodes, 5)
    assert "has 3 CPUs on 2 nodes, and 5 instances need one each; lower instances" in str(caught.value)


def test_so_are_more_than_the_nodes_that_may_be_used_have() -> None:
    with pytest.raises(Unplaceable, match="has 4 CPUs on the 1 of its 2 nodes that may be used, and 5 inst"):
        placed([Machine(2), Machine(4)], 5, NodePlacement(1, SPREAD))


def test_a_unit_needs_as_many_nodes_as_it_has_members() -> None:
    with pytest.raises(Unplaceable) as caught:
        placed([Machine(8), Machine(8)], 1, NodePlacement(nodes_per_unit=3))
    assert "has 2 nodes, and nodes_per_unit=3 needs as many; lower it, or add a node" in str(caught.value)
    with pytest.raises(Unplaceable, match="has the 1 of its 2 nodes that may be used, and nodes_per_unit=2"):
        placed([Machine(8), Machine(8)], 1, NodePlacement(1, nodes_per_unit=2))


def test_nodes_without_a_processor_for_a_front_are_none_of_its_units() -> None:
    nodes = [Machine(1, name="a"), Machine(1, name="b")]
    said = "has CPUs for front 2 on 1 of 2 nodes, and nodes_per_unit=2 needs as many; lower it, or add a node"
    with pytest.raises(Unplaceable, match=said):
        placed(nodes, 1, NodePlacement(nodes_per_unit=2), Share(1, 2))
    with pytest.raises(Unplaceable, match="has 0 CPUs for front 2 on 1 node, and 1 instances need one each"):
        placed(nodes[:1], 1, ANYWHERE, Share(1, 2))


def test_the_members_of_units_need_a_processor_each_on_different_nodes() -> None:
    nodes = [Machine(1), Machine(8)]
    with pytest.raises(Unplaceable) as caught:
        placed(nodes, 2, NodePlacement(nodes_per_unit=2))
    assert "has 9 CPUs on 2 nodes, and 2 instances need 2 each, on different nodes" in str(caught.value)


def test_workers_that_take_the_place_of_others_may_be_there_beside_them() -> None:
    nodes = [Machine(2, 2), Machine(2, 2)]
    assert placed(nodes, 4) == [4, 4]


def test_those_of_another_placement_are_not_counted_where_the_new_ones_go() -> None:
    nodes = [Machine(2, 1), Machine(2, 1)]
    assert placed(nodes, 2, NodePlacement(0, PACK)) == [2, 0]


def test_what_is_left_of_a_cluster_takes_as_many_as_it_bears() -> None:
    (node,) = place([Machine(2, 1)], 4, ANYWHERE, ADDRESS)
    assert node.cpus == 2
    with pytest.raises(Unplaceable):
        place([Machine(2, 2)], 4, ANYWHERE, ADDRESS)


def test_without_a_node_it_says_how_to_start_one() -> None:
    with pytest.raises(Unplaceable, match=f"ray start --address {ADDRESS}"):
        place([], 1, ANYWHERE, ADDRESS)


def of_each_front(cpus: list[int], instances: int, fronts: int, placement: NodePlacement) -> list[list[int]]:
    """What each front has on the nodes, which every one lists in another order."""
    found = []
    for front in range(fronts):
        nodes = [Machine(count, name=f"n{k}", is_home=k == front) for k, count in enumerate(cpus)]
        share = Share(front, fronts)
        placed(nodes[front:] + nodes[:front], share.of(instances), placement, share)
        found.append([node.worker_count() for node in nodes])
    return found


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=6),
    st.data(),
    st.sampled_from([ANYWHERE, NodePlacement(0, PACK)]),
)
def test_fronts_put_no_more_on_a_node_than_it_bears_without_a_word_between_them(
    cpus: list[int], data: st.DataObject, placement: NodePlacement
) -> None:
    fronts = data.draw(st.integers(2, len(cpus)))
    instances = data.draw(st.integers(fronts, max(fronts, sum(cpus))))
    on_nodes = [sum(each) for each in zip(*of_each_front(cpus, instances, fronts, placement), strict=True)]
    assert sum(on_nodes) == instances
    assert all(count <= bears for count, bears in zip(on_nodes, cpus, strict=True))


@pytest.mark.parametrize("placement", [ANYWHERE, NodePlacement(0, PACK)])
def test_a_front_has_its_own_node_first(placement: NodePlacement) -> None:
    assert of_each_front([2, 2], 2, 2, placement) == [[1, 0], [0, 1]]


def test_fronts_that_may_use_some_nodes_only_use_the_same() -> None:
    assert of_each_front([2, 2], 2, 2, NodePlacement(1, SPREAD)) == [[1, 0], [1, 0]]


def test_fronts_that_may_use_some_nodes_only_use_the_oldest_whatever_each_has_there() -> None:
    some = NodePlacement(1)
    for front, workers_on_new in ((0, 1), (1, 0)):
        old, new = Machine(2, name="b"), Machine(4, workers_on_new, some, "a", began_s=1.0)
        assert place([new, old], 1, some, ADDRESS, Share(front, 2)) == (old,)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4), st.lists(st.integers(1, 4), max_size=3), st.data()
)
def test_nodes_that_join_move_no_processor_from_one_front_to_another(
    cpus: list[int], more: list[int], data: st.DataObject
) -> None:
    fronts = 2
    instances = data.draw(st.integers(fronts, sum(cpus)))
    names = data.draw(st.permutations([f"n{k}" for k in range(len(cpus + more))]))
    on_nodes = [0] * len(names)
    for front in range(fronts):
        share = Share(front, fronts)
        nodes = [
            Machine(count, name=name, began_s=began_s)
            for began_s, (count, name) in enumerate(zip(cpus + more, names, strict=True))
        ]
        placed(nodes[: len(cpus)], share.of(instances), ANYWHERE, share)
        for _ in range(share.of(sum(cpus + more)) - share.of(instances)):
            (node,) = place(nodes, share.of(sum(cpus + more)), ANYWHERE, ADDRESS, share)
            node.workers.append(ANYWHERE)
        on_nodes = [count + node.worker_count() for count, node in zip(on_nodes, nodes, strict=True)]
    assert on_nodes == cpus + more


def test_a_front_is_told_how_many_processors_are_for_it() -> None:
    with pytest.raises(Unplaceable, match="has 2 CPUs for front 1 on 2 nodes, and 3 instances need one each"):
        placed([Machine(2), Machine(2)], 3, ANYWHERE, Share(0, 2))


def check(cpus: list[int], fronts: int, instances: int, placement: NodePlacement = ANYWHERE) -> None:
    check_fronts(cpus, fronts, instances, placement, ADDRESS)


def test_more_fronts_than_nodes_are_refused_in_one_sentence() -> None:
    check([4, 4], fronts=2, instances=2)
    with pytest.raises(Unplaceable) as caught:
        check([4, 4], fronts=3, instances=3)
    assert str(caught.value) == (
        f"--fronts 3 needs as many nodes, and the Ray cluster at {ADDRESS} has 2; lower it, or add a node "
        f"with ray start --address {ADDRESS}"
    )


def test_so_are_more_instances_than_the_processors_of_all_fronts_together() -> None:
    check([2, 1], fronts=2, instances=3)
    with pytest.raises(Unplaceable) as caught:
        check([2, 1], fronts=2, instances=4)
    assert str(caught.value) == (
        f"the cluster at {ADDRESS} has 3 CPUs on 2 nodes, and 4 instances need one each; lower instances, or "
        f"add a node with ray start --address {ADDRESS}"
    )


def test_so_are_units_that_the_processors_of_one_front_do_not_bear() -> None:
    check([3, 3], fronts=2, instances=2, placement=NodePlacement(nodes_per_unit=2))
    with pytest.raises(Unplaceable, match="has 3 CPUs for front 1 on 2 nodes, and 2 instances need 2 each"):
        check([3, 3], fronts=2, instances=3, placement=NodePlacement(nodes_per_unit=2))


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data(), st.integers(1, 3))
def test_what_is_refused_at_the_start_can_be_placed_by_no_front_whichever_node_is_older(
    cpus: list[int], data: st.DataObject, nodes_per_unit: int
) -> None:
    fronts = data.draw(st.integers(2, len(cpus)))
    instances = data.draw(st.integers(fronts, max(fronts, sum(cpus))))
    placement = NodePlacement(nodes_per_unit=nodes_per_unit)
    try:
        check(cpus, fronts, instances, placement)
    except Unplaceable:
        with pytest.raises(Unplaceable):
            of_each_front(data.draw(st.permutations(cpus)), instances, fronts, placement)
    else:
        assert nodes_per_unit * instances <= sum(cpus)
