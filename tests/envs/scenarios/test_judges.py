"""The machines of another structure than the family's: `usl`, `roofline` and `profiled`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from envs.scenarios import paper_load
from envs.scenarios.families import SOURCES, scenarios, space_of
from envs.scenarios.profiled import MODELS, profiled_machine
from envs.scenarios.roofline import Roofline, roofline, roofline_machine
from envs.scenarios.usl import sharing, usl_machine
from rrl.queueing.machine import Machine

SEEDS = range(12)
JUDGES = pytest.mark.parametrize("judge", [usl_machine, roofline_machine], ids=["usl", "roofline"])
Judge = Callable[[int], tuple[Machine, int]]
ONE = np.ones(1)


@JUDGES
def test_their_times_are_positive_and_finite_on_the_papers_grid(judge: Judge) -> None:
    for seed in SEEDS:
        machine, cores = judge(seed)
        assert machine.service_time_s.shape == (10, 10, 10, 6)
        assert np.isfinite(machine.service_time_s).all()
        assert (machine.service_time_s > 0).all()
        assert paper_load.FEWEST_CORES <= cores <= paper_load.MOST_CORES


@JUDGES
def test_they_follow_from_their_seeds(judge: Judge) -> None:
    np.testing.assert_array_equal(judge(3)[0].service_time_s, judge(3)[0].service_time_s)
    assert not np.allclose(judge(3)[0].service_time_s, judge(4)[0].service_time_s)
    assert len({judge(seed)[1] for seed in SEEDS}) > 3


@JUDGES
def test_the_papers_load_takes_as_much_of_them_as_of_the_family(judge: Judge) -> None:
    for seed in SEEDS:
        times_s = judge(seed)[0].service_time_s[..., 0]
        share = paper_load.RATE_PER_S / np.max(np.arange(1, 11) / times_s)
        low, high = paper_load.UTILISATION
        assert low <= share <= high


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_the_seeds_asked_for_and_its_cores(source: str) -> None:
    found = scenarios(f"{source}:1-2,5")
    assert [scenario.name for scenario in found] == [f"{source}-{seed}" for seed in (1, 2, 5)]
    for seed, scenario in zip((1, 2, 5), found, strict=True):
        machine, cores = SOURCES[source](seed)
        assert scenario.cores == cores
        np.testing.assert_array_equal(scenario.machine.service_time_s, machine.service_time_s)


def test_a_judge_may_depart_from_the_queueing_model_too() -> None:
    (scenario,) = scenarios("usl:3", "processor-sharing")
    assert (scenario.discipline, scenario.cores) == ("ps", usl_machine(3)[1])


def test_the_judges_that_are_formulas_have_the_papers_grid() -> None:
    for source in ("family", "usl", "roofline"):
        (scenario,) = scenarios(f"{source}:1")
        assert len(space_of("model", scenario.machine)) == 1000


# ---- profiled ----


def test_profiled_machines_are_the_served_models_in_turn_at_other_utilisations() -> None:
    models = len(MODELS)
    for seed in range(models):
        first, again = (profiled_machine(k)[0].service_time_s for k in (seed, seed + models))
        ratio = again / first
        np.testing.assert_allclose(ratio, ratio[0, 0, 0, 0])
        assert not np.isclose(ratio[0, 0, 0, 0], 1)


def test_the_papers_load_takes_a_share_of_profiled_machines_with_batches() -> None:
    for seed in SEEDS:
        machine, cores = profiled_machine(seed)
        assert cores == 2
        rates = machine.busy_instances[:, None] * machine.batch_size / machine.service_time_s
        low, high = paper_load.UTILISATION
        assert low <= paper_load.RATE_PER_S / np.max(rates) <= high


def test_profiled_machines_are_tuned_with_the_knobs_of_batching() -> None:
    (scenario,) = scenarios("profiled:2", "batches")
    space = space_of("batches", scenario.machine)
    assert space.names == ("instances", "intra_op_threads", "max_batch_size", "max_queue_delay_us")
    assert len(space) == 4 * 2 * 4 * 5


# ---- usl ----


def alone_s(seed: int) -> np.ndarray:
    """(I, A) of a batch of one, alone."""
    return usl_machine(seed)[0].service_time_s[:, :, 0, 0]


def test_usl_speed_up_by_threads_peaks_and_falls() -> None:
    falls = [int(np.argmin(alone_s(seed)[0])) < 9 for seed in range(40)]
    assert np.mean(falls) > 0.3


def test_usl_operators_gain_nothing_beyond_the_critical_path() -> None:
    """Up to it they gain in proportion, which no Amdahl's law does."""
    for seed in SEEDS:
        by_operators = alone_s(seed)[:, 0] / alone_s(seed)[0, 0]
        at_least = by_operators[-1]
        assert at_least < 1
        free = [i for i in range(2, 11) if 1 / i > at_least and i <= 3]
        np.testing.assert_allclose([by_operators[i - 1] for i in free], [1 / i for i in free])


def test_usl_work_slows_down_once_physical_cores_are_taken_and_again_at_all_cores() -> None:
    slowness = sharing(np.array([1.0, 4.0, 6.0, 8.0, 9.0, 16.0]), cores=8, hyper=0.5, spin=1.0)
    np.testing.assert_allclose(slowness[:2], 1.0)
    np.testing.assert_allclose(slowness[2:4], [6 / 5, 8 / 6])
    np.testing.assert_allclose(slowness[4:], [9 / 6 * (1 + 1 / 9), 16 / 6 * 1.5])


# ---- roofline ----

PLAIN = Roofline(
    cores=8,
    threads=1.0,
    operators=0.5,
    weights=0.02,
    requests=0.005,
    to_fill=4.0,
    cache=6.5,
    request_in_cache=0.1,
    beyond_cache=2.0,
    across_sockets=1.25,
)


def test_a_roofline_takes_the_longer_of_compute_and_memory_time() -> None:
    compute_bound = PLAIN.times(ONE, 2 * ONE, ONE, ONE)
    np.testing.assert_allclose(compute_bound, 1 / 2)
    memory_bound = PLAIN._replace(weights=3.0).times(ONE, 2 * ONE, ONE, ONE)
    np.testing.assert_allclose(memory_bound, 3.005 / (2 / 4))


def test_a_roofline_has_a_cliff_where_its_cache_is_full() -> None:
    by_memory = PLAIN._replace(weights=3.0)
    before, beyond = (by_memory.times(ONE, 4 * ONE, n * ONE, ONE)[0] / n for n in (5, 6))
    assert beyond == pytest.approx(2 * before)


def test_a_roofline_has_a_step_where_threads_are_on_two_sockets() -> None:
    on_one, on_two = (PLAIN.times(ONE, a * ONE, ONE, ONE)[0] * a for a in (4, 5))
    assert on_two == pytest.approx(1.25 * on_one)


def test_a_rooflines_noise_is_every_entrys_own() -> None:
    """Neighbours in the table tell nothing of it."""
    for seed in SEEDS:
        machine, cores = roofline_machine(seed)
        drawn = roofline(np.random.default_rng([seed, int.from_bytes(b"roof")]))
        assert drawn.cores == cores
        noise = np.log(machine.service_time_s / drawn.times(*paper_load.grid()))
        noise -= noise.mean()
        assert 0.009 < noise.std() < 0.041
        neighbours = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
        assert abs(neighbours) < 0.05
