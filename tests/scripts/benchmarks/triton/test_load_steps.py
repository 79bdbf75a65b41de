"""Steps of the load on a stock Triton: what they are, and how runs through them are judged."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.benchmarks.triton.load_steps import ClientLandscape, judged, kept, phases, step_moments_s
from scripts.serving.in_turns import InTurns
from tests.support.client_requests import rounds
from tests.support.runs.trials import BAD, BEST, NEARLY, START, record, trial


def test_the_rate_of_stepped_arrivals_is_that_of_each_phase() -> None:
    moments_s = step_moments_s((100.0, 200.0, 50.0), (10.0, 20.0, 10.0), np.random.default_rng(0))
    assert moments_s[0] == 0
    assert (np.diff(moments_s) >= 0).all()
    counts = np.histogram(moments_s, [0, 10, 30, 40])[0]
    assert counts == pytest.approx([1000, 4000, 500], rel=0.1)


def test_intervals_after_a_step_count_from_the_one_it_falls_into() -> None:
    run = trial("guided", [START, BEST, BEST, BEST, BAD, BAD, BEST, BEST], BEST)
    assert run.run is not None
    near = [{BEST}, {BAD}, {BEST}]
    up, down = judged(run.run, run.requests, (35.0, 30.0, 15.0), near)
    assert up.intervals == 2
    assert down.intervals == 1
    assert (up.seconds, down.seconds) == (15.0, 5.0)
    assert down.mean_ms == pytest.approx(10.0)
    up, _ = judged(run.run, run.requests, (45.0, 30.0, 5.0), near)
    assert up.intervals is None  # it left again


def test_what_a_run_kept_at_a_load_is_what_it_had_longest_and_last_in_each_phase() -> None:
    of_phases = [[START, BEST, BEST], [BAD], [NEARLY, NEARLY, START]]
    records = [[record(number) for number in phase] for phase in of_phases]
    assert kept((100.0, 200.0, 100.0), records) == {100.0: {BEST, NEARLY, START}, 200.0: {BAD}}


def test_a_phase_in_which_no_interval_ended_is_an_error() -> None:
    run = trial("guided", [START, BEST], BEST)
    assert run.run is not None
    with pytest.raises(RuntimeError, match="no interval"):
        phases(run.run, run.requests, (15.0, 30.0, 15.0))


@pytest.mark.parametrize(("far_ms", "is_near"), [(18.6, True), (18.8, False)])
def test_near_the_best_of_a_load_are_those_within_a_tenth_of_it(far_ms: float, is_near: bool) -> None:
    """What was measured alone counts by as much less as the others turned out to be worth: 10 / 17."""
    alone_ms = {START: 20.0, BEST: 18.0, NEARLY: 17.0, BAD: far_ms}
    turns_ms = {START: (15.0, 15.0, 15.0), BEST: (7.0, 10.0, 10.0), NEARLY: (10.0, 10.0, 8.0)}
    seen = ClientLandscape(rounds({n: [ms] for n, ms in alone_ms.items()}), InTurns(rounds(turns_ms)))
    assert seen.turns.best_ms() == pytest.approx(10.0)
    assert seen.near() == ({BEST, NEARLY, BAD} if is_near else {BEST, NEARLY})
    ratio, error = seen.turns.ratio(START)
    assert (ratio, error) == (pytest.approx(1.5), pytest.approx(0.0))
