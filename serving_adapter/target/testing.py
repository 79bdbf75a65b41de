"""The contract of a target as checks that any test-suite can run over targets of its own.

    from serving_adapter.target.testing import check_target

    def test_my_target_keeps_the_contract(server):
        check_target(lambda: MyTarget(server.address), {"instances": 2}, server.ask)

Each promise is a function of its own, so that a suite can run the promises one by one (`PROMISES`). It makes
targets of a real server, and leaves that as it found it. A target that breaks a promise raises
`BrokenTargetPromise`, whose sentence says which and how. Nothing here needs a test framework.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

from serving_adapter.knob_limits import Configuration
from serving_adapter.target.error import NoSuchKnob, TargetError
from serving_adapter.target.reading import Reading
from serving_adapter.target.target import Target

MakeTarget = Callable[[], Target]
"""Makes the target under test, not connected yet. All that it makes are of one server and one model."""

Ask = Callable[[], object]
"""Has the server answer one request."""

UNKNOWN_KNOB = "number_of_wheels"
COUNTERS = ("success", "failure", "inference_count", "execution_count", "request_s", "queue_s", "service_s")
REQUESTS = 5
COUNTED_S = 30.0  # within which a server has counted what it answered
_POLL_S = 0.05
_ROUNDING = 1e-6  # sums of seconds may round


class BrokenTargetPromise(AssertionError):
    """A target does not keep its contract; the message is one sentence."""


# --- the promises ---


def check_connecting_changes_nothing(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """A target that is connected, or connected anew, finds what was in force, and changes none of it."""
    with _connected(make) as target:
        found, text = target.configuration(), target.config_text()
        with _connected(make) as second:
            second.connect()
            _check(bool(second.server), "a connected target does not say what server it is of")
            _check(bool(second.model), "a connected target does not say which model it is")
        _check_configuration(target, found, "connecting another target")
        _check(target.config_text() == text, "connecting changed the text of the configuration in force")


def check_knobs_hold_the_configuration(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """Every knob has limits, and what is in force lies within them."""
    with _connected(make) as target:
        knobs, found = target.knobs(), target.configuration()
        _check(found.keys() == knobs.keys(), f"the knobs are {list(knobs)}, and in force are {list(found)}")
        for name, value in found.items():
            low, high = knobs[name]
            _check(isinstance(value, int), f"{name} is {value!r}, which is no integer")
            _check(low <= value <= high, f"{name} is {value} and its limits are {low} to {high}")
        _check(target.why_not_tunable() == "", f"it is not tunable: {target.why_not_tunable()}")


def check_a_change_is_in_force(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """`apply` puts in force what it is given, and leaves the others; every target sees it then."""
    with _as_found(make) as (target, found), _connected(make) as second:
        _check(not found.items() & change.items(), "the change given names what is in force already")
        applied = target.apply(change)
        _check(applied.changed, "apply says of a change that it was none")
        was = {name: found[name] for name in change}
        _check(dict(applied.replaced) == was, f"apply says that it replaced {applied.replaced}, not {was}")
        for each in (target, second):
            _check_configuration(each, found | dict(change), "a change")
        if set(change) <= target.in_place_knobs:
            _check(applied.in_place, "knobs that change in place were not changed in place")


def check_only_changes_are_made(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """What is in force already is not sent. Of a change `before_change` hears once, what was and will be."""
    told: list[tuple[dict[str, int], dict[str, int]]] = []
    with _as_found(make) as (target, found):
        target.before_change = lambda before, after: told.append((before, after))
        applied = target.apply(found)
        _check(applied[:3] == (True, 0, False), f"apply says of what was in force already: {applied}")
        _check(told == [], "before_change was told of what was in force already")
        target.apply(change)
        _check(told == [(found, found | dict(change))], f"before_change was told {told} of one change")


def check_an_unknown_knob(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """A knob that the model has not is a NoSuchKnob, and what came with it is not in force."""
    with _as_found(make) as (target, found):
        error = _error_of(lambda: target.apply({**change, UNKNOWN_KNOB: 4}), "an unknown knob")
        _check(isinstance(error, NoSuchKnob), f"an unknown knob is no NoSuchKnob: {error!r}")
        _check_configuration(target, found, "a change with an unknown knob")


def check_a_value_beyond_the_limits(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """A value that a knob cannot have is refused, and nothing is changed."""
    with _as_found(make) as (target, found):
        name = next(iter(change))
        value = target.knobs()[name].high + 1
        _error_of(lambda: target.apply({name: value}), f"{name}={value}, which is beyond its limits")
        _check_configuration(target, found, "a value beyond the limits")


def check_readings_never_fall(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """What is answered is counted, and no counter ever falls, over changes and new connections either."""
    with _as_found(make) as (target, _):
        readings = [target.read()]
        for _ in range(REQUESTS):
            ask()
        readings.append(_counted(target, readings[0].answered + REQUESTS))
        target.apply(change)
        readings.append(target.read())
        _check(
            target.glance().answered >= readings[-1].answered, "a glance counts less than a reading before"
        )
        target.connect()
        ask()
        readings.append(_counted(target, readings[0].answered + REQUESTS + 1))
        for earlier, later in pairwise(readings):
            _check_later(earlier, later)


def check_restoring(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """`restore` puts back what was found, by what was told of it then, in another process even."""
    with _as_found(make) as (target, found):
        text = target.config_text()
        target.apply(change)
        with _connected(make) as second:
            second.restore(found, text)
            _check_configuration(second, found, "restoring what was found")
            _check(second.config_text() == text, "what was restored has another text than what was found")


def check_its_files(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """The files of a configuration begin with its text, and can be had without the server."""
    with _connected(make) as target:
        found, text, files = target.configuration(), target.config_text(), target.config_files(change)
        if not text:
            return
        wanted = target.config_text(change)
        _check(wanted != text, "another configuration has the text of the one in force")
        _check(target.config_text(found) == text, "what is in force has another text when asked for")
        _check(next(iter(files.values()), "") == wanted, "config_files does not begin with config_text")
        _check_configuration(target, found, "asking for files")
        if (kept := target.kept(text)) is not None:
            _check(
                kept.config_text(change) == wanted, "what is kept of a text gives another one for a change"
            )
            names = list(kept.config_files(change))
            _check(names == list(files), f"what is kept of a text gives the files {names}, not {list(files)}")


def check_closing(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """`close` may be called at any time and more than once. What is not connected says so, until it is."""
    target = make()
    target.close()
    _error_of(target.read, "a target that is not connected")
    target.connect()
    found = target.configuration()
    target.close()
    target.close()
    target.connect()
    _check_configuration(target, found, "closing and connecting again")
    target.close()


PROMISES: tuple[Callable[[MakeTarget, Configuration, Ask], None], ...] = (
    check_connecting_changes_nothing,
    check_knobs_hold_the_configuration,
    check_a_change_is_in_force,
    check_only_changes_are_made,
    check_an_unknown_knob,
    check_a_value_beyond_the_limits,
    check_readings_never_fall,
    check_restoring,
    check_its_files,
    check_closing,
)
"""What holds for every target that a run can tune."""


def check_target(make: MakeTarget, change: Configuration, ask: Ask) -> None:
    """Checks every promise; BrokenTargetPromise at the first that the target does not keep.

    `change` names some knobs with values that the server takes and that are not in force.
    """
    for promise in PROMISES:
        promise(make, change, ask)


# --- how a promise is checked ---


@contextmanager
def _connected(make: MakeTarget) -> Iterator[Target]:
    target = make()
    target.connect()
    try:
        yield target
    finally:
        target.close()


@contextmanager
def _as_found(make: MakeTarget) -> Iterator[tuple[Target, dict[str, int]]]:
    """A connected target, and what it was found with, which is in force again at the end."""
    with _connected(make) as target:
        found = target.configuration()
        try:
            yield target, found
        finally:
            target.before_change = lambda before, after: None
            target.apply(found)


def _check_configuration(target: Target, expected: Mapping[str, int], after: str) -> None:
    now = target.configuration()
    _check(now == dict(expected), f"after {after} {now} is in force, and {dict(expected)} was expected")


def _error_of(question: Callable[[], object], what: str) -> TargetError:
    try:
        question()
    except TargetError as error:
        sentence = str(error)
        _check(sentence != "" and "\n" not in sentence, f"{what} is no sentence: {sentence!r}")
        _check(not sentence.endswith("."), f"{what} has a full stop, which the caller sets: {sentence!r}")
        return error
    except Exception as error:
        raise BrokenTargetPromise(f"{what} is no TargetError: {error!r}") from error
    raise BrokenTargetPromise(f"{what} is no error")


def _counted(target: Target, answered: int) -> Reading:
    """A reading that has counted so many answers. A server may count a moment after it has answered."""
    end_s = time.monotonic() + COUNTED_S
    while (reading := target.read()).answered < answered:
        _check(time.monotonic() < end_s, f"{reading.answered} answers are counted, and {answered} were given")
        time.sleep(_POLL_S)
    return reading


def _check_later(earlier: Reading, later: Reading) -> None:
    _check(later.at_s > earlier.at_s, "of two readings the later one is not of a later moment")
    for name in COUNTERS:
        before, after = getattr(earlier, name), getattr(later, name)
        fell = not math.isnan(before) and after < before - _ROUNDING
        _check(not fell, f"the counter {name} fell from {before} to {after}")


def _check(kept: bool, breach: str) -> None:
    if not kept:
        raise BrokenTargetPromise(breach)
