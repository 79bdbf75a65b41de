"""`--pin`: a knob that a run sets to a value of the user's and keeps there, of one model or of all.

A pinned value comes into force with the first interval, and with it the start that the rest is compared with.
What was found comes back only after a run that was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rrl.space import ConfigurationSpace


class Pin(NamedTuple):
    """One knob and its value."""

    model: str  # empty: any model that is tuned
    knob: str
    value: int

    def __str__(self) -> str:
        return f"{self.model}.{self.knob}={self.value}" if self.model else f"{self.knob}={self.value}"


def pins(texts: Sequence[str]) -> list[Pin]:
    """Reads `knob=value` and `MODEL.knob=value`, commas or spaces between; ValueError where it cannot."""
    found = [_pin(text) for each in texts for text in each.replace(",", " ").split()]
    names = [(pin.model, pin.knob) for pin in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--pin gives {'.'.join(filter(None, name))} twice: give each knob once")
    return found


def pins_of(texts: Sequence[str], model: str) -> dict[str, int]:
    """The knobs pinned of one model: its own pins count before those of any model."""
    found = pins(texts)
    owners = dict.fromkeys(("", model))
    return {pin.knob: pin.value for owner in owners for pin in found if pin.model == owner}


def for_model(texts: Sequence[str], model: str) -> tuple[str, ...]:
    """Those that concern one of several models, as they would be given for it alone."""
    return tuple(f"{knob}={value}" for knob, value in pins_of(texts, model).items())


def check_models(texts: Sequence[str], models: Sequence[str]) -> None:
    """ValueError for a pin of another model than these, which are tuned."""
    unknown = sorted({pin.model for pin in pins(texts) if pin.model} - set(models))
    if unknown:
        raise ValueError(
            f"--pin names {', '.join(unknown)}, but {', '.join(models)} is tuned: pin MODEL.knob=value of "
            "what is tuned"
        )


def with_pins(
    space: ConfigurationSpace, pinned: Mapping[str, int], knobs: Sequence[str], forbidden: Sequence[str]
) -> ConfigurationSpace:
    """The grid with one value for each pinned knob, whether it was to be tuned or not.

    ValueError for a knob that the target lacks, and for one that is never to be changed.
    """
    if unknown := [name for name in pinned if name not in knobs]:
        has = ", ".join(knobs) or "none"
        raise ValueError(f"--pin: the target has no knob {', '.join(unknown)}; it has {has}")
    if both := [name for name in pinned if name in forbidden]:
        raise ValueError(f"--pin sets {', '.join(both)}, which --forbid never changes: give one of the two")
    values = {**space.to_json(), **{name: [value] for name, value in pinned.items()}}
    return ConfigurationSpace.of(**values)


def _pin(text: str) -> Pin:
    name, equals, value = text.partition("=")
    model, _, knob = name.rpartition(".")
    if not equals or not knob or not value.isdecimal():
        raise ValueError(
            f"cannot read --pin {text!r}: expected knob=value or MODEL.knob=value, e.g. resnet.instances=1"
        )
    return Pin(model, knob, int(value))
