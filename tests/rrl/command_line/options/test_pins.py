"""Knobs that a run sets and keeps."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from rrl.command_line.opening.search_space import space_of
from rrl.command_line.options.option_values import for_each_model
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.pins import for_model, pins_of
from rrl.space import ConfigurationSpace
from serving_adapter.knob_limits import KNOBS

FOUND = {"instances": 2, "max_batch_size": 8}


def grid(found: dict[str, int] = FOUND, **options: object) -> ConfigurationSpace:
    target = SimpleNamespace(
        is_local=True,
        cores=4,
        model="resnet",
        room=lambda: None,
        requests_hold_several_items=lambda: False,
        knobs=lambda: {name: KNOBS[name] for name in found},
    )
    given = TuneOptions(target="localhost:8001", **options)  # type: ignore[arg-type]
    return space_of(given, target, found, found, Console(file=io.StringIO()))  # type: ignore[arg-type]


def test_a_pinned_knob_has_one_value_whatever_was_found() -> None:
    space = grid(pin=("instances=1",))
    assert space.to_json()["instances"] == [1]
    assert len(space.to_json()["max_batch_size"]) > 1
    assert space.configuration(space.nearest(FOUND))["instances"] == 1  # where the run starts


def test_a_knob_that_is_not_tuned_can_be_pinned_too() -> None:
    space = grid(knobs=("instances=1:3",), pin=("max_batch_size=4",))
    assert space.to_json() == {"instances": [1, 2, 3], "max_batch_size": [4]}


def test_a_models_own_pin_counts_before_that_of_any() -> None:
    texts = ("instances=1,resnet.v1.instances=2", "bert.max_batch_size=8")
    assert pins_of(texts, "resnet.v1") == {"instances": 2}
    assert pins_of(texts, "bert") == {"instances": 1, "max_batch_size": 8}
    assert for_model(texts, "bert") == ("instances=1", "max_batch_size=8")
    options = TuneOptions(target="localhost:1", model="bert,resnet.v1", pin=texts)
    assert [one.pin for one in for_each_model(options)] == [
        ("instances=1", "max_batch_size=8"),
        ("instances=2",),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pin": ("instances",)}, "cannot read --pin 'instances': expected knob=value"),
        ({"pin": ("instances=one",)}, "cannot read --pin"),
        ({"pin": ("instances=1", "instances=2")}, "--pin gives instances twice"),
        ({"pin": ("bert.instances=1",), "model": "a,b"}, "--pin names bert, but a, b is tuned"),
        ({"pin": ("instances=1",), "advise": True}, "observes what is in force and sets no knob"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TuneOptions(target="localhost:1", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pin": ("bert.instances=1",)}, "--pin names bert, but resnet is tuned"),
        ({"pin": ("inter_op_threads=2",)}, "the target has no knob inter_op_threads; it has instances"),
        ({"pin": ("instances=1",), "forbid": ("instances",)}, "--pin sets instances, which --forbid never"),
    ],
)
def test_what_the_target_cannot_have_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        grid(**options)  # type: ignore[arg-type]
