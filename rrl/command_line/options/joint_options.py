"""What the options of a run on several models, or on the parts of one, say of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rrl.command_line.options.option_values import forbidden_knobs
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.pins import for_model
from rrl.knobs import model_and_knob
from rrl.space import ConfigurationSpace, Knob


def own_options(options: TuneOptions, model: str, models: Sequence[str]) -> TuneOptions:
    """The options of one of the models tuned, as they would be given for it alone.

    `resnet.instances` is of one model, `instances` of each. What is given of a model counts before that.
    ValueError for a knob of a model that is not tuned.
    """
    return dataclasses.replace(
        options,
        model=model,
        jointly=False,
        bls_composing_models=None,
        knobs=own_knobs(options.knobs, model, models),
        pin=for_model(options.pin, model),
        forbid=tuple(sorted(_own_forbidden(options.forbid, model))),
    )


def own_knobs(texts: Sequence[str], model: str, models: Sequence[str]) -> tuple[str, ...]:
    """Those of `--knobs` that are of one model, without its name; empty where none is given."""
    if not texts:
        return ()
    found: dict[str, Knob] = {}
    given = [(*model_and_knob(knob.name), knob) for knob in ConfigurationSpace.parse(texts).knobs]
    if unknown := sorted({owner for owner, _, _ in given if owner} - set(models)):
        raise ValueError(
            f"--knobs names {', '.join(unknown)}, but {', '.join(models)} is tuned: give MODEL.knob=values "
            "of what is tuned"
        )
    for of in ("", model):
        found |= {name: Knob(name, knob.values) for owner, name, knob in given if owner == of}
    if not found:
        raise ValueError(f"--knobs gives nothing to tune of {model}: add one of its knobs, or leave it away")
    return tuple(f"{knob.name}={','.join(map(str, knob.values))}" for knob in found.values())


def _own_forbidden(forbid: Sequence[str], model: str) -> set[str]:
    named = [model_and_knob(name) for name in forbidden_knobs(forbid)]
    return {knob for owner, knob in named if owner in ("", model)}
