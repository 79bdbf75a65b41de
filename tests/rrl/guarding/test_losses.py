"""How improbable the losses under a configuration must be to speak against it."""

from __future__ import annotations

from collections import Counter
from math import comb

import pytest

from rrl.guarding.losses import Losses

OWN, OTHER = 3, 5


def losses(own: int, own_lost: int, other: int, other_lost: int) -> Losses:
    return Losses(
        _intervals=own + other,
        _ran=Counter({OWN: own, OTHER: other}),
        _lost=Counter({OWN: own_lost, OTHER: other_lost}),
    )


@pytest.mark.parametrize(
    ("own", "own_lost", "other", "other_lost"),
    [(4, 2, 30, 0), (4, 2, 6, 3), (10, 5, 40, 3), (30, 2, 5, 0), (8, 8, 2, 1), (2, 2, 3, 3)],
)
def test_they_speak_against_it_where_chance_gives_as_many_more_seldom(
    own: int, own_lost: int, other: int, other_lost: int
) -> None:
    """Counted out: in so many of all the ways to lose as many intervals, it has no fewer of them."""
    lost = own_lost + other_lost
    ways = sum(comb(own, k) * comb(other, lost - k) for k in range(own_lost, min(own, lost) + 1))
    chance = ways / comb(own + other, lost)
    seen = losses(own, own_lost, other, other_lost)
    assert OWN not in seen.beyond_chance(chance * 0.999999)
    assert OWN in seen.beyond_chance(chance * 1.000001)


def test_those_of_a_server_that_comes_and_goes_for_months_are_weighed_as_well() -> None:
    """The numbers of ways have hundreds of thousands of digits."""
    assert not losses(2_000_000, 400_000, 1_000_000, 200_000).beyond_chance(0.05)
    assert losses(2_000_000, 402_000, 1_000_000, 198_000).beyond_chance(0.05) == {OWN}
