"""The contract of targets catches those that break it, one promise each, and lets an honest one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from serving_adapter.knob_limits import Configuration, Limits
from serving_adapter.target import testing
from serving_adapter.target.error import NoSuchKnob, TargetError
from serving_adapter.target.reading import Reading
from serving_adapter.target.target import Applied, Target
from serving_adapter.target.testing import PROMISES, BrokenTargetPromise, check_target

CHANGE = {"instances": 2}


@dataclass
class Kettle:
    """The smallest server: it has two knobs and counts."""

    knobs: dict[str, int] = field(default_factory=lambda: {"instances": 1, "max_batch_size": 4})
    boiled: int = 0

    def ask(self) -> None:
        self.boiled += 1


class Honest(Target):
    """Tunes a kettle."""

    kettle: Kettle

    def __init__(self, address: str = "kettle:1") -> None:
        super().__init__(address, "tea")
        self.is_connected = False

    def connect(self, control: bool = True, counters: bool = True) -> None:
        self.server, self.is_connected = "kettle 1.0", True

    def close(self) -> None:
        self.is_connected = False

    def knobs(self) -> Mapping[str, Limits]:
        return dict.fromkeys(self.kettle.knobs, Limits(1, 8))

    def configuration(self) -> dict[str, int]:
        return dict(self.kettle.knobs)

    def apply(self, configuration: Configuration) -> Applied:
        present = self.configuration()
        for name, value in configuration.items():
            if name not in present:
                raise NoSuchKnob(f"the kettle has no knob {name}")
            if not 1 <= value <= 8:
                raise TargetError(f"{name} must be from 1 to 8, got {value}")
        changed = bool(configuration.items() - present.items())
        if changed:
            self.before_change(present, present | dict(configuration))
            self.kettle.knobs.update(configuration)
        return Applied(True, 0, changed, {name: present[name] for name in configuration})

    @property
    def in_place_knobs(self) -> frozenset[str]:
        return frozenset(self.kettle.knobs)

    def read(self) -> Reading:
        if not self.is_connected:
            raise TargetError("the target kettle:1 is not connected; call connect() first")
        boiled = self.kettle.boiled
        return Reading(time.monotonic(), boiled, 0, boiled, boiled, 0.1 * boiled, 0.0, 0.1 * boiled)

    def config_text(self, configuration: Configuration | None = None) -> str:
        wanted = self.kettle.knobs | dict(configuration or {})
        return "".join(f"{name}: {value}\n" for name, value in sorted(wanted.items()))

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        return {"kettle.yaml": self.config_text(configuration)}


class ChangesWhenConnected(Honest):
    def connect(self, control: bool = True, counters: bool = True) -> None:
        super().connect(control, counters)
        self.kettle.knobs["max_batch_size"] += 1


class BeyondItsLimits(Honest):
    def knobs(self) -> Mapping[str, Limits]:
        return {**super().knobs(), "max_batch_size": Limits(1, 2)}


class AppliesNothing(Honest):
    def apply(self, configuration: Configuration) -> Applied:
        return super().apply({})._replace(changed=True)


class ChangesOthers(Honest):
    def apply(self, configuration: Configuration) -> Applied:
        applied = super().apply(configuration)
        self.kettle.knobs["max_batch_size"] = 1 + configuration.get("instances", 3)
        return applied


class TellsNobody(Honest):
    def apply(self, configuration: Configuration) -> Applied:
        self.before_change = lambda before, after: None
        return super().apply(configuration)


class SendsAlways(Honest):
    def apply(self, configuration: Configuration) -> Applied:
        return super().apply(configuration)._replace(changed=True, in_place=False)


class TakesAnyKnob(Honest):
    def apply(self, configuration: Configuration) -> Applied:
        return super().apply({name: value for name, value in configuration.items() if name in self.knobs()})


class TakesAnyValue(Honest):
    def apply(self, configuration: Configuration) -> Applied:
        return super().apply({name: min(value, 8) for name, value in configuration.items()})


class CountsFromItsConnection(Honest):
    def connect(self, control: bool = True, counters: bool = True) -> None:
        super().connect(control, counters)
        self.began = self.kettle.boiled

    def read(self) -> Reading:
        reading = super().read()
        return Reading(reading.at_s, reading.success - self.began, 0, 0, 0, 0.0, 0.0, 0.0)


class RestoresTheFirstKnob(Honest):
    def restore(self, found: Configuration, text: str = "") -> Applied:
        return self.apply({"max_batch_size": found["max_batch_size"]})


class WritesWhatIsInForce(Honest):
    def config_files(self, configuration: Configuration) -> dict[str, str]:
        return {"kettle.yaml": self.config_text()}


class ReadsUnconnected(Honest):
    def read(self) -> Reading:
        self.is_connected = True
        return super().read()


class Rambles(Honest):
    def read(self) -> Reading:
        if not self.is_connected:
            raise TargetError("Not connected.\nTraceback follows.")
        return super().read()


BROKEN: dict[type[Honest], Callable[..., None]] = {
    ChangesWhenConnected: testing.check_connecting_changes_nothing,
    BeyondItsLimits: testing.check_knobs_hold_the_configuration,
    AppliesNothing: testing.check_a_change_is_in_force,
    ChangesOthers: testing.check_a_change_is_in_force,
    TellsNobody: testing.check_only_changes_are_made,
    SendsAlways: testing.check_only_changes_are_made,
    TakesAnyKnob: testing.check_an_unknown_knob,
    TakesAnyValue: testing.check_a_value_beyond_the_limits,
    CountsFromItsConnection: testing.check_readings_never_fall,
    RestoresTheFirstKnob: testing.check_restoring,
    WritesWhatIsInForce: testing.check_its_files,
    ReadsUnconnected: testing.check_closing,
    Rambles: testing.check_closing,
}


def made(kind: type[Honest], kettle: Kettle) -> Callable[[], Honest]:
    """Makes targets of one kettle."""

    def make() -> Honest:
        target = kind()
        target.kettle = kettle
        return target

    return make


def test_an_honest_target_keeps_every_promise_and_leaves_its_server_as_it_was():
    kettle = Kettle()
    check_target(made(Honest, kettle), CHANGE, kettle.ask)
    assert kettle.knobs == Kettle().knobs


@pytest.mark.parametrize(("kind", "promise"), BROKEN.items(), ids=lambda each: each.__name__)
def test_who_breaks_a_promise_is_caught(kind, promise, monkeypatch):
    monkeypatch.setattr(testing, "COUNTED_S", 0.1)
    kettle = Kettle()
    with pytest.raises(BrokenTargetPromise):
        promise(made(kind, kettle), CHANGE, kettle.ask)


def test_every_promise_can_be_broken():
    assert set(BROKEN.values()) == set(PROMISES)
