"""Children of the store's benchmarks: what they answer, and what they have of their parent."""

from __future__ import annotations

import psutil
import pytest
import torch

from scripts.benchmarks.store.forked import in_children

MIB = 1 << 20


def of_its_own_bytes() -> int:
    """Memory that is no file's."""
    found = psutil.Process().memory_info()
    return int(found.rss - found.shared)


def test_children_answer_in_the_order_of_their_work() -> None:
    assert in_children([lambda: [1], lambda: "two"]) == [[1], "two"]


def test_a_child_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="a child failed"):
        in_children([lambda: 1 / 0])
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_child_has_none_of_its_parents_free_memory() -> None:
    """The heap's top stays in use, so that the parent keeps what is free below it."""
    blocks = [torch.ones(8192) for _ in range(2000)]
    top = torch.ones(8192)
    del blocks
    (of_child,) = in_children([of_its_own_bytes])
    assert of_child < of_its_own_bytes() - 40 * MIB
    del top
