"""Which share of the requests is expected to fail, where only some configurations were measured."""

from __future__ import annotations

import math

import numpy as np

from rrl.belief.failure_shares import FailureShares
from rrl.measurement import NOTHING_OBSERVED, Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2], max_batch_size=[1, 2, 4, 8])
EVERY = np.arange(len(SPACE))


def number(instances: int, threads: int, batch: int) -> int:
    configuration = {"instances": instances, "intra_op_threads": threads, "max_batch_size": batch}
    return SPACE.number(configuration)


def interval(share: float, requests: int = 1000) -> Measurement:
    failures = round(share * requests)
    return Measurement(5.0, requests, requests - failures, failures, latency=NOTHING_OBSERVED)


def learned(shares: dict[int, float]) -> FailureShares:
    found = FailureShares(SPACE)
    for k, share in shares.items():
        found.learn(k, interval(share))
    return found


def test_where_nothing_failed_nothing_is_expected_to() -> None:
    assert not learned({number(1, 1, 4): 0.0, number(2, 1, 8): 0.0}).of(EVERY).any()


def test_an_interval_without_an_answer_tells_nothing() -> None:
    found = learned({number(1, 1, 4): 0.2})
    before = found.of(EVERY)
    found.learn(number(1, 1, 4), Measurement(5.0, 0, 0, 0, latency=NOTHING_OBSERVED))
    assert found.of(EVERY).tolist() == before.tolist()


def test_what_was_measured_is_expected_to_fail_as_it_did() -> None:
    found = learned({number(1, 1, 4): 0.2, number(3, 2, 1): 0.0})
    assert found.of(np.array([number(1, 1, 4), number(3, 2, 1)])).tolist() == [0.2, 0.0]


def test_what_needs_less_memory_than_all_that_failed_is_expected_to_fail_least() -> None:
    """As far from what failed as what needs more."""
    found = learned({number(2, 1, batch): 0.1 for batch in (2, 4)})
    smaller, larger = found.of(np.array([number(2, 1, 1), number(2, 1, 8)]))
    assert smaller < 0.6 * larger
    fewer, more = found.of(np.array([number(1, 1, 4), number(3, 1, 4)]))
    assert fewer < 0.6 * more


def test_what_fails_with_the_least_memory_too_is_expected_to_fail_everywhere() -> None:
    found = learned({number(1, 1, 1): 0.1} | {number(2, 1, batch): 0.1 for batch in (2, 4, 8)})
    shares = found.of(EVERY)
    assert shares.min() > 0.07
    assert math.isclose(shares.max(), 0.1)


def test_threads_need_no_memory_that_is_known_of() -> None:
    """What has other threads, and as many instances and batches as large, is no look at the memory."""
    found = learned({number(2, 2, batch): 0.1 for batch in (2, 4)})
    smaller, as_large = found.of(np.array([number(2, 2, 1), number(2, 1, 4)]))
    assert smaller < 0.6 * as_large
