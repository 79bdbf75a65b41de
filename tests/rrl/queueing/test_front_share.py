"""The share of the cores that a server's front takes: worked by hand, and against a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.queueing.front_share import FrontShare, at_once


def test_how_many_run_at_once() -> None:
    assert at_once([]).tolist() == [1.0]
    assert at_once([0.2, 0.5]) == pytest.approx([0.4, 0.5, 0.1])


def test_idle_cores_are_taken_first() -> None:
    # One thread on two cores is in the way only where both processes run at once: 0.1 x 0.2.
    share = FrontShare(cores=2, threads=1, cpu_s=(0.001, 0.002))
    assert share.slowdown(np.array([1]), 100.0) == pytest.approx([1 / (1 - 0.1 * 0.2)])


def test_on_full_cores_each_takes_its_share() -> None:
    # Two requests of a thread each on two cores lose half of the work for each process that runs.
    share = FrontShare(cores=2, threads=1, cpu_s=(0.001, 0.002))
    assert share.slowdown(np.array([2]), 100.0) == pytest.approx([2 / (2 - 0.3)])


def test_the_threads_of_a_request_wait_for_one_another_unless_others_run_meanwhile() -> None:
    share = FrontShare(cores=2, threads=2, cpu_s=(0.001,))
    alone, two = share.slowdown(np.array([1, 2]), 100.0)
    assert alone == pytest.approx(1 / (1 - 0.1))
    assert two == pytest.approx(2 / (2 - 0.1))


def test_nobody_else_takes_nothing() -> None:
    assert FrontShare(2, 1, ()).slowdown(np.arange(1, 5), 1000.0).tolist() == [1.0] * 4
    assert FrontShare(2, 1, (0.01,)).slowdown(np.arange(1, 5), 0.0).tolist() == [1.0] * 4


def test_times_without_the_others_are_those_that_give_the_profiled_ones() -> None:
    share = FrontShare(cores=2, threads=1, cpu_s=(0.001, 0.002))
    quiet_s = np.array([0.010, 0.011, 0.016])
    profiled_s = share.beside(quiet_s, 80.0)
    assert (profiled_s > quiet_s).all()
    assert share.quiet(profiled_s, np.full(3, 80.0)) == pytest.approx(quiet_s)


def test_it_is_the_mean_work_of_a_simulation_in_time() -> None:
    """Two processes run and sleep for random times. The model works on what they leave of two cores."""
    rng = np.random.default_rng(0)
    moments = 400_000
    taken = (rng.random(moments) < 0.15).astype(int) + (rng.random(moments) < 0.3)
    for busy, work in ((1, 1.0 - (taken == 2)), (2, 2.0 - taken), (3, 2.0 - taken)):
        share = FrontShare(cores=2, threads=1, cpu_s=(0.0015, 0.003))
        assert share.slowdown(np.array([busy]), 100.0) == pytest.approx(min(busy, 2) / work.mean(), rel=0.005)


def test_processes_that_need_all_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="need all 1 cores"):
        FrontShare(1, 1, (0.01,)).slowdown(np.array([1]), 100.0)
