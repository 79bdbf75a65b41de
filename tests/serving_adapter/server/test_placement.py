"""Where workers are on a cluster is read from a configuration's parameters, or refused in one sentence."""

from __future__ import annotations

import pytest

from serving_adapter.server.placement import as_parameters, from_parameters
from serving_adapter.server.workers.parallelism import ANYWHERE, PACK, NodePlacement


@pytest.mark.parametrize("placement", [ANYWHERE, NodePlacement(3, PACK, 2)])
def test_what_is_told_is_read_again(placement: NodePlacement) -> None:
    assert from_parameters(as_parameters(placement), ANYWHERE, on_cluster=True) == placement


def test_what_is_not_given_stays_as_it_was() -> None:
    before = NodePlacement(3, PACK, 2)
    assert from_parameters({"CLUSTER_NODES": "4"}, before, on_cluster=True) == NodePlacement(4, PACK, 2)
    assert from_parameters({"CLUSTER_NODES_PER_UNIT": "1"}, before, True) == NodePlacement(3, PACK, 1)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CLUSTER_NODES_PER_UNIT", "0", "nodes_per_unit must be from 1 to 10000, got 0"),
        (
            "CLUSTER_NODES_PER_UNIT",
            "two",
            "string_value must be a whole number, got 'two'",
        ),
        ("CLUSTER_NODES", "-1", "nodes must be from 0 to 10000, 0 for all, got -1"),
        ("CLUSTER_PLACEMENT", "near", "placement must be spread or pack, got 'near'"),
        ("CLUSTER_SIZE", "2", "known: CLUSTER_NODES, CLUSTER_PLACEMENT, CLUSTER_NODES_PER_UNIT"),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_parameters({name: value}, ANYWHERE, on_cluster=True)


def test_at_home_there_is_no_such_setting() -> None:
    with pytest.raises(ValueError, match="is no setting of this server; it needs rrl-serve --engine ray"):
        from_parameters({"CLUSTER_NODES_PER_UNIT": "2"}, ANYWHERE, on_cluster=False)
