"""Numbers are written with as many digits as tell something."""

from __future__ import annotations

import math

import pytest

from rrl.views.html_report.numbers import (
    duration,
    four_digits,
    in_figures,
    linear_ticks,
    log_ticks,
    lower_or_higher,
    minute_ticks,
    ms,
    times,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "–"),
        (0.0, "0.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (12345.6, "12,346"),
    ],
)
def test_latencies_have_about_three_digits(value: float, shown: str) -> None:
    assert ms(value) == shown


def test_ratios_durations_and_ticks_are_round() -> None:
    assert (times(1.584), times(33.2), times(math.inf)) == ("1.58x", "33x", "–")
    assert lower_or_higher(30, 15) == "2.00x lower"
    assert lower_or_higher(15, 30) == "2.00x higher"
    assert lower_or_higher(15, 15.001) == "the same"
    assert lower_or_higher(15, math.nan) == "–"
    assert [duration(s) for s in (5, 89.6, 300, 7500)] == ["5 s", "90 s", "5.0 min", "2 h 05 min"]
    assert log_ticks(8, 120) == [10, 20, 30, 50, 100]
    assert log_ticks(0.9, 2e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert linear_ticks(87, 3) == [0, 50]
    assert linear_ticks(0, 3) == [0]
    assert minute_ticks(4.8) == [(k, f"{k} min") for k in range(5)]
    assert [label for _, label in minute_ticks(0.9)] == ["0 s", "20 s", "40 s"]
    assert [label for _, label in minute_ticks(600)][:2] == ["0 h", "2 h"]


def test_numbers_have_no_exponent_however_large_or_small() -> None:
    assert [in_figures(value) for value in (0.1 + 0.2, 20_000.0, 2e6)] == ["0.3", "20,000", "2,000,000"]
    assert [four_digits(value) for value in (60.126, 19.9, 12_345.6)] == ["60.13", "19.9", "12,350"]
    assert [in_figures(value) for value in (0.0, 1.5e-5, 2e10)] == ["0", "0.000015", "20,000,000,000"]
    assert [four_digits(value) for value in (1.2345e-5, 1.2345e12)] == ["0.00001234", "1,234,000,000,000"]
    assert four_digits(math.nan) == "nan"


def test_a_short_range_has_ticks_too() -> None:
    assert log_ticks(21.0, 28.0, 4) == [22, 24, 26, 28]
    assert len(log_ticks(44.9, 45.1, 6)) > 1
