"""What models slow each other by, told from intervals."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.belief.several_models.neighbours import ALIKE, Beside, Neighbours, SeenModel, shapes
from rrl.space import ConfigurationSpace

CORES = 2.0
SPACE = ConfigurationSpace.of(instances=[1, 2], intra_op_threads=[1, 2])
FIRST_SHARING = 1 + len(ALIKE)
FAIR = 2 + FIRST_SHARING  # θ = 1


def beside(
    own: float, instances: float = 1.0, share: float = 0.5, threads: float = 1.0, slope: float = 0.3
) -> Beside:
    return Beside(*(np.array([value]) for value in (own, instances, share, threads, slope)))


def test_nobody_slows_a_model_that_is_alone() -> None:
    assert shapes(beside(2.0, instances=0.0, share=0.0), CORES) == pytest.approx(np.zeros((1, 7)))


def test_shared_cores_slow_only_beyond_their_number() -> None:
    within = shapes(beside(1.0), CORES)[0, FAIR]
    beyond = shapes(beside(1.0, threads=2.0), CORES)[0, FAIR]
    always = shapes(beside(2.0, share=1.0, threads=2.0), CORES)[0, FAIR]
    assert within == pytest.approx(0.0)
    assert beyond == pytest.approx(0.5 * np.log(1.5))  # three threads on two cores, half of the time
    assert always == pytest.approx(np.log(2.0), rel=0.01)


def test_a_neighbour_counts_as_one_of_our_own_instances() -> None:
    alike = shapes(beside(1.0, share=1.0, slope=0.4), CORES)[0, ALIKE.index(1.0) + 1]
    assert alike == pytest.approx(0.4 * np.log(2.0))


@pytest.mark.parametrize("truth", [0, FAIR])
def test_the_truth_is_found_from_a_few_intervals(truth: int) -> None:
    """Each model keeps its configuration for some intervals while its neighbour's changes."""
    rng = np.random.default_rng(3)
    neighbours = Neighbours([SPACE, SPACE])
    for time in range(1, 13):
        numbers = (time // 3 % len(SPACE), time % len(SPACE))
        speed, seen = 0.03 * rng.standard_normal(), []
        for model in (0, 1):
            own, other = (SPACE.configuration(numbers[k]) for k in (model, 1 - model))
            found = shapes(
                beside(float(own["intra_op_threads"]), other["instances"], 0.7, other["intra_op_threads"]),
                CORES,
            )[0]
            alone = np.log(0.02) - 0.5 * np.log(own["intra_op_threads"]) + model
            log_time = alone + found[truth] + speed + 0.01 * rng.standard_normal()
            seen.append(SeenModel(model, time, numbers[model], log_time, found))
        neighbours.learn(seen)
    rows = [row for each in neighbours._seen for row in each]
    errors = [row.shapes @ neighbours.weights - row.shapes[truth] for row in rows]
    before = [row.shapes @ Neighbours([SPACE]).weights - row.shapes[truth] for row in rows]
    assert np.std(errors) < 0.5 * np.std(before)
    assert neighbours.past(0)[12] == pytest.approx(float(rows[-2].shapes @ neighbours.weights))
