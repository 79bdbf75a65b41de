"""What the rounds of configurations measured in turns say, and which of them is best."""

from __future__ import annotations

import math
from statistics import geometric_mean

import numpy as np
import pytest

from scripts.serving.in_turns import InTurns, Ratio, best_in_turns, p95_ms, ratio
from tests.support.client_requests import requests, rounds

START, BEST, NEARLY = range(3)


def test_the_best_of_a_round_is_chosen_by_the_others() -> None:
    """Two configurations of 10 ms, each lucky in one of three rounds."""
    rounds_ms = {NEARLY: (10.0, 10.0, 8.0), BEST: (7.0, 10.0, 10.0), START: (40.0, 40.0, 40.0)}
    finals = rounds(rounds_ms)
    assert [part.mean_ms for part in best_in_turns(finals)] == [10.0, 10.0, 10.0]
    alone = {n: parts[:1] for n, parts in finals.items()}
    assert [part.mean_ms for part in best_in_turns(alone)] == [7.0]


def test_a_configuration_without_answers_is_not_the_best() -> None:
    turns = {START: [requests([9.0], failed=[0])] * 2, BEST: [requests([10.0])] * 2}
    assert [part.mean_ms for part in best_in_turns(turns)] == [10.0, 10.0]


def test_what_refuses_most_requests_and_answers_the_rest_soon_is_not_the_best() -> None:
    turns = {START: [requests([1.0] * 10, failed=range(9))] * 2, BEST: [requests([10.0])] * 2}
    assert [part.mean_ms for part in best_in_turns(turns)] == [10.0, 10.0]


def test_a_slow_spell_in_one_window_tells_nothing_of_its_configuration() -> None:
    rounds_ms = {BEST: (10.0, 10.0, 90.0, 10.0, 10.0), NEARLY: (11.0,) * 5, START: (40.0,) * 5}
    finals = rounds(rounds_ms)
    best = best_in_turns(finals)
    assert best == finals[BEST]
    assert ratio(finals[NEARLY], best).middle == pytest.approx(1.1)
    assert ratio(finals[BEST], best).middle == 1.0


def test_where_loads_differ_every_round_counts() -> None:
    """The one that answers soonest at two loads of three collapses at the third."""
    rounds_ms = {BEST: (10.0, 20.0, 30.0), NEARLY: (9.0, 18.0, 900.0), START: (40.0, 80.0, 120.0)}
    finals = rounds(rounds_ms)
    assert ratio(finals[NEARLY], finals[BEST]).middle < 1
    assert ratio(finals[NEARLY], finals[BEST], middle=geometric_mean).middle == pytest.approx(24.3 ** (1 / 3))


def test_what_is_said_of_rounds_of_different_loads_is_their_geometric_mean() -> None:
    rounds_ms = {BEST: (10.0, 20.0, 80.0), NEARLY: (20.0, 30.0, 160.0)}
    seen = InTurns(rounds(rounds_ms), geometric_mean)
    assert seen.best_ms() == seen.of_ms(BEST, p95_ms) == pytest.approx(16000.0 ** (1 / 3))
    assert seen.ratio(NEARLY).middle == seen.ratio(NEARLY, p95_ms).middle == pytest.approx(6.0 ** (1 / 3))
    assert seen.beside_ms({START: [requests([100.0])]})[NEARLY] == pytest.approx(96000.0 ** (1 / 3))


def test_a_round_without_answers_of_the_best_says_nothing_of_its_latency() -> None:
    silent, said = requests([9.0], failed=[0]), requests([10.0])
    assert InTurns({BEST: [silent, said, said]}, geometric_mean).best_ms() == pytest.approx(10.0)
    assert math.isnan(InTurns({}).best_ms())


def test_a_ratio_is_that_of_rounds_of_the_same_arrivals() -> None:
    slow_machine = [requests([ms] * 20) for ms in (10.0, 30.0, 10.0)]
    twice = [requests([2 * ms] * 20) for ms in (10.0, 30.0, 10.0)]
    assert ratio(twice, slow_machine) == pytest.approx((2.0, 0.0))
    once_three_times = [*twice[:2], requests([30.0] * 20)]
    assert ratio(once_three_times, slow_machine).middle == pytest.approx(2.0)
    assert math.isnan(ratio(twice[:1], slow_machine[:1]).error)


def test_a_round_in_which_the_best_answers_nothing_tells_nothing() -> None:
    best = [requests([10.0]), requests([9.0], failed=[0]), requests([10.0])]
    assert ratio([requests([20.0])] * 3, best).middle == 2.0
    turns = {
        START: [requests([9.0], failed=[0]), requests([30.0])],
        BEST: [requests([9.0], failed=[0]), requests([20.0])],
    }
    assert [part.mean_ms for part in best_in_turns(turns)][1] == 20.0


def test_what_was_in_the_first_rounds_only_is_compared_by_them_and_cannot_be_the_best() -> None:
    seen = InTurns(rounds({START: (12.0,), BEST: (15.0, 10.0, 10.0), NEARLY: (16.0, 11.0, 11.0)}))
    assert seen.best_ms() == 10.0
    assert [part.mean_ms for part in seen.best] == [15.0, 10.0, 10.0]
    assert seen.ratio(START).middle == pytest.approx(12 / 15)
    assert seen.ratio(NEARLY).middle == pytest.approx(1.1)


def test_what_answers_nothing_is_infinitely_worse_than_the_best() -> None:
    silent = [requests([9.0], failed=[0])] * 3
    assert math.isinf(ratio(silent, [requests([10.0])] * 3).middle)


def test_the_error_of_a_ratio_is_about_the_scatter_of_what_other_rounds_would_say() -> None:
    rng = np.random.default_rng(0)
    best = [requests([1.0])] * 5

    def found() -> Ratio:
        return ratio([requests([ms]) for ms in np.exp(rng.normal(0, 0.1, 5))], best)

    many = [found() for _ in range(60)]
    assert np.mean([each.error for each in many]) == pytest.approx(
        np.std([each.middle for each in many]), rel=0.3
    )
    assert ratio([requests([2.0])] * 5, best) == (2.0, 0.0)
