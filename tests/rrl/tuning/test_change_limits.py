from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.tuning.change_limits import HOUR_S, ChangeLimits, ChangeWindow

SUNDAY = datetime(2026, 11, 22)  # weekday 6


def at(text: str) -> float:
    """`Mon 22:30` of the week after that Sunday, as Unix time."""
    day, clock = text.split()
    days = 1 + ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun").index(day)
    hour, minute = map(int, clock.split(":"))
    return (SUNDAY + timedelta(days=days, hours=hour, minutes=minute)).timestamp()


# how often

moments = st.lists(st.floats(0, 5 * HOUR_S), min_size=1, max_size=60).map(sorted)


@given(wished_s=moments, per_hour=st.integers(1, 6), together=st.integers(1, 8))
def test_no_60_minutes_ever_hold_more_changes_than_allowed(
    wished_s: list[float], per_hour: int, together: int
) -> None:
    limits, made_s = ChangeLimits(per_hour), []
    for now_s in wished_s:
        if not limits.pause(now_s, together):
            for _ in range(min(together, per_hour)):
                limits.changed(now_s)
                made_s.append(now_s)
    assert made_s  # it does not simply forbid all
    for begin_s in made_s:
        assert sum(begin_s <= s < begin_s + HOUR_S for s in made_s) <= per_hour


@given(made_s=moments, now_s=st.floats(0, 6 * HOUR_S), per_hour=st.integers(1, 6), changes=st.integers(1, 6))
def test_the_next_moment_is_the_earliest_at_which_it_is_allowed(
    made_s: list[float], now_s: float, per_hour: int, changes: int
) -> None:
    limits = ChangeLimits(per_hour)
    made_s = [s for s in made_s if s <= now_s]
    for s in made_s:
        limits.changed(s)
    next_s = limits.next_s(now_s, changes)
    wanted = min(changes, per_hour)

    def counted(moment_s: float) -> int:
        return sum(s + HOUR_S > moment_s for s in made_s)

    assert next_s >= now_s
    assert counted(next_s) + wanted <= per_hour
    if next_s > now_s:
        assert counted(next_s - 1e-3) + wanted > per_hour


def test_changes_are_counted_whatever_the_order_they_are_told_in() -> None:
    limits = ChangeLimits(2)
    for s in (500.0, 100.0, 300.0):  # one more than allowed: the guard's
        limits.changed(s)
    assert limits.next_s(600.0) == 300.0 + HOUR_S
    assert limits.next_s(600.0, changes=2) == 500.0 + HOUR_S


def test_without_limits_every_change_is_allowed() -> None:
    limits = ChangeLimits()
    for s in range(100):
        limits.changed(float(s))
    assert limits.pause(100.0, changes=50, lasting_s=1e6) == ""


def test_a_limit_of_no_changes_is_refused() -> None:
    with pytest.raises(ValueError, match="--max-changes-per-hour must be at least 1, got 0"):
        ChangeLimits(0)


# at which hours

WEEK_MIN = 7 * 24 * 60


@st.composite
def windows(draw: st.DrawFn) -> ChangeWindow:
    opens_min = draw(st.integers(0, 24 * 60 - 1))
    length_min = draw(st.integers(1, 24 * 60))
    days = draw(st.sets(st.integers(0, 6), min_size=1))
    return ChangeWindow(opens_min, opens_min + length_min, frozenset(days))


def is_open(window: ChangeWindow, minute_of_week: int) -> bool:
    return any(
        (minute_of_week - (24 * 60 * day + window.opens_min)) % WEEK_MIN
        < window.closes_min - window.opens_min
        for day in window.weekdays
    )


@settings(deadline=None, max_examples=60)
@given(
    several=st.lists(windows(), min_size=1, max_size=3),
    minute=st.integers(0, WEEK_MIN - 1),
    lasting_min=st.integers(0, 90),
)
def test_changes_are_allowed_within_windows_and_the_next_moment_is_the_first_that_lasts(
    several: list[ChangeWindow], minute: int, lasting_min: int
) -> None:
    limits = ChangeLimits(windows=tuple(several))
    monday_s = at("Mon 0:00")
    now_s = monday_s + 60 * minute
    opens = [
        any(is_open(window, m % WEEK_MIN) for window in several) for m in range(minute, minute + WEEK_MIN)
    ]
    assert (limits.next_s(now_s) == now_s) == opens[0]
    expected = next(
        (m for m in range(WEEK_MIN - 100) if all(opens[m : m + max(lasting_min, 1)])),
        None,
    )
    next_s = limits.next_s(now_s, lasting_s=60 * lasting_min)
    if expected is not None:
        assert next_s == now_s + 60 * expected
    else:
        assert next_s >= now_s + 60 * (WEEK_MIN - 100)


@pytest.mark.parametrize(
    ("text", "open_at", "closed_at"),
    [
        ("22:00-06:00", ["Mon 22:00", "Tue 05:59", "Sun 23:00"], ["Mon 21:59", "Tue 06:00", "Wed 12:00"]),
        ("12:00-13:30", ["Mon 12:00", "Sat 13:29"], ["Mon 13:30", "Mon 11:59"]),
        (
            "Mon-Fri 22:00-06:00",
            ["Mon 22:30", "Sat 05:00"],
            ["Mon 05:00", "Sat 22:30", "Sun 23:00"],  # it opens on Fridays, and not on Sundays
        ),
        ("fri-mon 00:00-24:00", ["Fri 00:00", "Sun 12:00", "Mon 23:59"], ["Tue 00:00", "Thu 23:59"]),
        ("Tue,Thu 9:00-10:00", ["Tue 09:30", "Thu 09:30"], ["Wed 09:30"]),
        ("Mon 22:00-24:00 Tue 00:00-06:00 12:00-13:00", ["Tue 00:00", "Wed 12:30"], ["Wed 00:30"]),
    ],
)
def test_windows_are_read(text: str, open_at: list[str], closed_at: list[str]) -> None:
    for texts in ([text], text.split(" ")):  # quoted, or as the shell takes it apart
        limits = ChangeLimits(windows=ChangeWindow.parse(texts))
        for moment in open_at:
            assert limits.pause(at(moment)) == "", moment
        for moment in closed_at:
            assert "outside the change window" in limits.pause(at(moment)), moment


@pytest.mark.parametrize(
    "text",
    ["22:00", "22-06", "Mon", "Mon-Fri", "Mon Tue 1:00-2:00", "Montag 1:00-2:00", "25:00-26:00", "1:60-2:00",
     "22:00-22:00", "Mon-Wed-Fri 1:00-2:00", "24:00-01:00", "later"],
)  # fmt: skip
def test_what_is_no_window_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="--change-window") as refused:
        ChangeWindow.parse([text])
    assert "\n" not in str(refused.value)


def test_windows_that_touch_are_one() -> None:
    limits = ChangeLimits(windows=ChangeWindow.parse(["Mon 22:00-24:00", "Tue 00:00-06:00"]))
    assert limits.next_s(at("Mon 23:59"), lasting_s=3600) == at("Mon 23:59")


def test_a_window_within_another_shortens_nothing() -> None:
    limits = ChangeLimits(windows=ChangeWindow.parse(["1:00-9:00", "2:00-3:00"]))
    assert limits.next_s(at("Tue 02:30"), lasting_s=3600) == at("Tue 02:30")
    assert limits.next_s(at("Tue 04:00")) == at("Tue 04:00")


def test_before_a_window_closes_the_way_back_is_allowed_and_nothing_else() -> None:
    limits = ChangeLimits(1, ChangeWindow.parse(["22:00-06:00"]))
    limits.changed(at("Tue 05:30"))
    late_s = at("Tue 05:59")
    assert limits.pause(late_s) == "the change window is about to close: the next at 22:00:00"
    assert limits.may_return(late_s, lasting_s=300)
    assert not limits.may_return(at("Tue 05:31"), lasting_s=300)
    assert not limits.may_return(at("Tue 06:00"), lasting_s=300)
    assert "about to close: the next at 22:00:00" in ChangeLimits(windows=limits.windows).pause(
        late_s, 1, 300
    )


def test_a_pause_says_why_and_when_the_next_change_is_allowed() -> None:
    limits = ChangeLimits(1, ChangeWindow.parse(["Mon-Fri 8:00-18:00"]))
    limits.changed(at("Mon 09:00"))
    assert limits.pause(at("Mon 09:10")) == "no more than 1 change in an hour: the next at 10:00:00"
    assert limits.pause(at("Mon 07:00")) == "no more than 1 change in an hour: the next at 10:00:00"
    assert limits.pause(at("Fri 20:00")) == "outside the change window: the next at Mon 2026-11-30 08:00:00"


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its clocks went forward on 29 March 2026 and back on 25 October."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(("day", "hours"), [("2026-03-28", 7), ("2026-10-24", 9), ("2026-11-22", 8)])
def test_the_hours_are_the_local_clocks_when_that_is_changed(day: str, hours: int) -> None:
    limits = ChangeLimits(windows=ChangeWindow.parse(["22:00-06:00"]))
    opens_s = datetime.fromisoformat(f"{day} 22:00").timestamp()
    assert limits.next_s(opens_s - 60) == opens_s
    closes_s = opens_s + 3600 * hours
    assert limits.next_s(closes_s - 1) == closes_s - 1
    assert limits.next_s(closes_s) > closes_s


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("window", "open_at", "closed_at"),
    [
        ("22:00-02:30", ["01:59"], ["03:00", "03:29"]),
        ("02:30-06:00", ["03:00", "05:59"], ["01:59", "06:00"]),
        ("02:15-02:45", [], ["01:59", "03:00", "03:15", "03:44"]),
    ],
)
def test_an_edge_in_the_hour_that_the_clock_leaves_out_is_where_it_is_set(
    window: str, open_at: list[str], closed_at: list[str]
) -> None:
    limits = ChangeLimits(windows=ChangeWindow.parse([window]))
    times_s = {t: datetime.fromisoformat(f"2026-03-29 {t}").timestamp() for t in (*open_at, *closed_at)}
    assert [t for t, at_s in times_s.items() if limits.next_s(at_s) == at_s] == open_at
