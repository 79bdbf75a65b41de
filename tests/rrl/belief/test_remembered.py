"""What is remembered of past intervals, and what is forgotten."""

from __future__ import annotations

import numpy as np

from rrl.belief.remembered import MAX_INTERVALS, MAX_INTERVALS_ALIKE, Remembered, SeenInterval


def seen(time: int, configuration: int, entries: int = 1) -> SeenInterval:
    return SeenInterval(time, (configuration,), np.arange(entries), np.zeros(entries), np.ones(entries))


def times(remembered: Remembered) -> list[int]:
    return [int(time) for time in remembered.rows()[1]]


def test_the_rows_of_all_intervals_are_told_in_their_order() -> None:
    remembered = Remembered()
    assert not remembered
    for time, entries in ((1, 2), (4, 3)):
        remembered.add(seen(time, time, entries))
    assert remembered
    rows, when = remembered.rows()
    assert rows.interval.tolist() == [0, 0, 1, 1, 1]
    assert when.tolist() == [1, 4]


def test_of_one_configuration_few_intervals_are_remembered_and_old_ones_among_them() -> None:
    remembered = Remembered()
    for time in range(1, 22):
        remembered.add(seen(time, configuration=int(time > 1)))
    kept = times(remembered)
    assert len(kept) == 1 + MAX_INTERVALS_ALIKE
    assert kept[0] == 1
    assert kept[-1] == 21
    assert min(kept[1:]) < 12


def test_the_oldest_go_where_all_differ() -> None:
    remembered = Remembered()
    for time in range(1, MAX_INTERVALS + 6):
        remembered.add(seen(time, configuration=time))
    assert times(remembered) == list(range(6, MAX_INTERVALS + 6))
