"""When `scripts/bench live-comparison` calls an agent settled."""

from __future__ import annotations

import pytest

from scripts.serving.served_agents import settled_after

NEAR, FAR = True, False


@pytest.mark.parametrize(
    ("near", "share", "expected"),
    [
        ([FAR, FAR, NEAR, NEAR], 1.0, 3),
        ([NEAR, FAR, NEAR, NEAR], 1.0, 3),
        ([NEAR] * 4, 1.0, 1),
        ([NEAR, FAR], 1.0, None),
        ([], 1.0, None),
        ([FAR, NEAR, NEAR, NEAR, FAR, NEAR, NEAR, NEAR, NEAR, NEAR, NEAR], 0.9, 2),
        ([FAR, NEAR, FAR, NEAR, FAR], 0.9, None),
    ],
)
def test_an_agent_has_settled_with_the_first_near_interval_that_few_far_ones_follow(
    near: list[bool], share: float, expected: int | None
) -> None:
    assert settled_after(near, share) == expected
