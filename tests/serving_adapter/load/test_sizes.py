from __future__ import annotations

import numpy as np
import pytest

from serving_adapter.load.sizes import make_sizes


def sampled(text: str, trace_sizes: np.ndarray | None = None) -> np.ndarray:
    sizes = make_sizes(text, trace_sizes)
    first, again = (sizes.sample(np.random.default_rng(5), 20_000) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.issubdtype(first.dtype, np.integer)
    assert first.min() >= 1
    return first


def test_fixed_sizes_are_all_equal() -> None:
    assert set(sampled("fixed:32")) == {32}


def test_uniform_sizes_reach_both_ends_evenly() -> None:
    sizes, counts = np.unique(sampled("uniform:3:6"), return_counts=True)
    assert sizes.tolist() == [3, 4, 5, 6]
    assert counts == pytest.approx([5000] * 4, abs=5 * np.sqrt(5000))


def test_lognormal_sizes_have_their_median_spread_and_limit() -> None:
    sizes = sampled("lognormal:40:0.5:200")
    assert np.median(sizes) == pytest.approx(40, abs=1)
    assert np.log(sizes).std() == pytest.approx(0.5, abs=0.02)
    assert sizes.max() == 200
    assert sampled("lognormal:400:1").max() == 512


def test_trace_sizes_are_the_trace_s_in_proportion() -> None:
    trace = np.array([0, 100, 500, 1000])
    sizes, counts = np.unique(sampled("trace:50", trace), return_counts=True)
    assert sizes.tolist() == [1, 5, 25, 50]
    assert counts == pytest.approx([5000] * 4, abs=5 * np.sqrt(5000))
    assert set(sampled("trace", np.array([0, 0]))) == {1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fixed",
        "fixed:",
        "fixed:0",
        "fixed:-3",
        "fixed:2.5",
        "fixed:two",
        "fixed:1:2",
        "uniform:5",
        "uniform:9:3",
        "lognormal:40",
        "lognormal:0:1",
        "lognormal:40:-1",
        "lognormal:nan:1",
        "lognormal:40:1:0",
        "fixed:1000000001",
        "mix:1:99999999999999999999:0.5",
        "normal:3:4",
    ],
)
def test_nonsense_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="are not understood; expected fixed:N, uniform:LOW:HIGH"):
        make_sizes(text)


def test_trace_sizes_need_a_trace_that_has_them() -> None:
    with pytest.raises(ValueError, match="need arrivals from a trace with a context_tokens column"):
        make_sizes("trace")
