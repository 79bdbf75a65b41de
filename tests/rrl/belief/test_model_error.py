"""What the replay gets wrong is learned of a configuration, and less of those like it."""

from __future__ import annotations

import tracemalloc
from itertools import product

import numpy as np
import pytest

from rrl.belief.model_error import ERROR_SD, NOISES, SCALES, ModelDiscrepancy
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2, 3])
OWN = SPACE.number({"instances": 2, "intra_op_threads": 2})
SHARES = SPACE.number({"instances": 2, "intra_op_threads": 3})
ALIKE = SPACE.number({"instances": 3, "intra_op_threads": 3})
OTHER = SPACE.number({"instances": 3, "intra_op_threads": 1})


def told(*errors: float, number: int = OWN, variance: float = 0.03**2) -> ModelDiscrepancy:
    model_error = ModelDiscrepancy(SPACE)
    for error in errors:
        model_error.learn(number, error, variance)
    return model_error


def test_nothing_is_expected_before_anything_was_observed() -> None:
    model_error = told()
    np.testing.assert_array_equal(model_error.log_ratio, 0.0)
    assert model_error.standard_deviations(np.array([OWN]))[0] == pytest.approx(np.sqrt(3) * ERROR_SD)


@pytest.mark.parametrize("error", [0.15, -0.15])
def test_an_error_carries_to_those_that_share_values_and_to_no_others(error: float) -> None:
    ratio = told(*[error] * 4).log_ratio / error
    assert 0.8 < ratio[OWN] <= 1.0
    assert ratio[OWN] > ratio[SHARES] + 0.05
    assert ratio[SHARES] > 0.2
    assert ratio[OTHER] == 0.0


def test_what_was_observed_is_known_better_than_what_shares_values_with_it() -> None:
    sd = told(*[0.1] * 4).standard_deviations(np.array([OWN, SHARES, OTHER]))
    assert sd[0] < sd[1] < sd[2]


def test_of_two_configurations_what_they_share_is_no_doubt() -> None:
    model_error = told(0.1, 0.1)
    alone = model_error.standard_deviations(np.arange(len(SPACE)))
    beside = model_error.standard_deviations(np.arange(len(SPACE)), beside=SHARES)
    assert beside[SHARES] < 1e-4
    # Both 3 x 3 and 2 x 3 are hardly known. That both may be slower alike is no doubt about which is better.
    assert beside[ALIKE] < 0.9 * np.hypot(alone[ALIKE], alone[SHARES])


def test_one_noisy_interval_says_little() -> None:
    assert told(0.4, variance=0.3**2).log_ratio[OWN] < 0.15
    assert told(*[0.4] * 30, variance=0.3**2).log_ratio[OWN] > 0.25


def test_an_overloaded_interval_is_not_worth_more_than_a_limit() -> None:
    np.testing.assert_array_equal(told(9.0).log_ratio, told(1.0).log_ratio)


def test_noise_that_is_larger_than_expected_is_not_taken_for_errors() -> None:
    """Errors of both signs cancel, however sure each claims to be."""
    noisy = told(*[0.3, -0.3] * 8, variance=0.02**2)
    assert abs(noisy.log_ratio[OWN]) < 0.05
    quiet = told(*[0.02, -0.02] * 8, variance=0.02**2)
    assert noisy.standard_deviations(np.array([OWN]))[0] > 1.5 * quiet.standard_deviations(np.array([OWN]))[0]


def test_many_intervals_of_few_configurations_say_what_each_of_them_says() -> None:
    """They are summed up by configuration, which is to lose nothing."""
    rng = np.random.default_rng(0)
    numbers = rng.choice([OWN, SHARES, OTHER], 12)
    errors, variances = rng.normal(0.05, 0.1, 12), rng.uniform(0.02, 0.1, 12) ** 2
    found = ModelDiscrepancy(SPACE)
    found.learn_all(zip(numbers.tolist(), errors.tolist(), variances.tolist(), strict=True))

    shared = sum(values[:, None] == values for values in SPACE.values.T)
    prior = ERROR_SD**2 * (np.eye(len(SPACE)) + shared)
    cases = []
    for (scale, of_scale), (noise, of_noise) in product(SCALES, NOISES):
        covariance = scale * prior[np.ix_(numbers, numbers)] + noise * np.diag(variances)
        explained = errors @ np.linalg.solve(covariance, errors) + np.linalg.slogdet(covariance)[1]
        mean = scale * prior[:, numbers] @ np.linalg.solve(covariance, errors)
        cases.append((of_scale + of_noise - 0.5 * explained, mean))
    evidence, log_ratio = max(cases, key=lambda case: case[0])
    assert found.log_evidence == pytest.approx(evidence)
    np.testing.assert_allclose(found.log_ratio, log_ratio, atol=1e-12)


def test_of_a_large_grid_no_more_is_kept_than_a_few_numbers_of_each_configuration() -> None:
    space = ConfigurationSpace.of(instances=range(1, 51), max_batch_size=range(1, 51))
    tracemalloc.start()
    try:
        model_error = ModelDiscrepancy(space)
        model_error.learn(3, 0.1, 0.03**2)
        model_error.standard_deviations(np.arange(len(space)), beside=3)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 0.05 * 8 * len(space) ** 2
