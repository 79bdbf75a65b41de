"""A node that runs another version is told of, and serves nothing."""

from __future__ import annotations

from serving_adapter.server.ray_engine.versions import difference, versions


def test_the_same_versions_are_no_difference() -> None:
    assert versions()["rrl-tune"]
    assert versions()["torch"]
    assert difference(versions(), versions()) == ""


def test_what_is_another_there_is_named_with_what_to_do() -> None:
    front, node = {"rrl-tune": "1.2.0", "torch": "2.13.0"}, {"rrl-tune": "1.1.0", "torch": "2.13.0"}
    assert difference(front, node) == (
        "it has rrl-tune 1.1.0, and the front has 1.2.0: install the same there"
    )
    assert difference(front, {"rrl-tune": "1.2.0"}) == (
        "it has torch missing, and the front has 2.13.0: install the same there"
    )
