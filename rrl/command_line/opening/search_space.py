"""The space that a run searches: the knobs given or the usual ones, around the start, none forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from envs.target_space import cores_of, default_space
from rrl.command_line.options.joint_options import own_options
from rrl.command_line.options.option_values import forbidden_knobs
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.pins import check_models, pins_of, with_pins
from rrl.joint import JointSpace, by_model
from rrl.space import Configuration, ConfigurationSpace, with_values
from serving_adapter.target import Target
from serving_adapter.target.open_inference.joint_target import JointTarget


def space_of(
    options: TuneOptions, target: Target, found: Configuration, start: Configuration, console: Console
) -> ConfigurationSpace:
    """The grid given, or the usual one of the target's knobs. The start's values are added to it.

    A pinned knob has one value, which the start has, too. That of several models is made of one of each.
    """
    if isinstance(target, JointTarget):
        found_by_model, start_by_model = by_model(found), by_model(start)
        models = list(target.members)
        check_models(options.pin, models)
        return JointSpace(
            {
                name: space_of(
                    own_options(options, name, models),
                    member,
                    found_by_model[name],
                    start_by_model[name],
                    console,
                )
                for name, member in target.members.items()
            }
        ).space
    if options.pin:
        check_models(options.pin, [target.model])
    pinned = pins_of(options.pin, target.model) if options.pin else {}
    given = (
        ConfigurationSpace.parse(options.knobs)
        if options.knobs
        else default_space(target.knobs(), cores_of(target, options.cores), target.room())
    )
    given = without_forbidden(given, options.forbid, found)
    if pinned:
        given = with_pins(given, pinned, list(target.knobs()), sorted(forbidden_knobs(options.forbid)))
    given = _with_batches_for_every_request(given, pinned, options, target, start, console)
    start = {**start, **pinned}
    space = with_values(given, start)
    if options.knobs:
        _say_what_was_added(given, space, start, console)
    return space


def _with_batches_for_every_request(
    given: ConfigurationSpace,
    pinned: Configuration,
    options: TuneOptions,
    target: Target,
    start: Configuration,
    console: Console,
) -> ConfigurationSpace:
    """The grid without batches that a request of several items may not fit into. None may be pinned."""
    bearable = _without_smaller_batches(given, start)
    if bearable == given or not target.requests_hold_several_items():
        return given
    why = "some requests hold several items, and Triton answers none that holds more than that"
    least = f"max_batch_size stays at {start['max_batch_size']} or above: {why}"
    if "max_batch_size" in pinned:
        raise ValueError(f"{least}; --pin sets a smaller one: pin no less, or leave it away")
    if options.resume is not None:
        raise ValueError(f"{least}; the run in {options.resume} was to try smaller ones: begin another")
    console.print(least, style="yellow")
    return bearable


def _without_smaller_batches(space: ConfigurationSpace, start: Configuration) -> ConfigurationSpace:
    """The grid without values of max_batch_size below the start's."""
    values = {knob.name: list(knob.values) for knob in space.knobs}
    if values.keys() & start.keys() >= {"max_batch_size"}:
        least = start["max_batch_size"]
        values["max_batch_size"] = [v for v in values["max_batch_size"] if v >= least] or [least]
    return ConfigurationSpace.of(**values)


def _say_what_was_added(
    given: ConfigurationSpace, space: ConfigurationSpace, start: Configuration, console: Console
) -> None:
    added = [f"{k.name}={start[k.name]}" for k, new in zip(given.knobs, space.knobs, strict=True) if k != new]
    if added:
        console.print(f"added to the --knobs, as the run starts there: {', '.join(added)}", style="yellow")


def without_forbidden(
    space: ConfigurationSpace, forbid: Sequence[str], names: Iterable[str]
) -> ConfigurationSpace:
    """The grid without the knobs that are never to be changed. ValueError for one that the target lacks."""
    forbidden, has = forbidden_knobs(forbid), list(names)
    if not has:  # A target that tells no knob can only be observed.
        return space
    unknown = sorted(forbidden - set(has))
    if unknown:
        raise ValueError(f"--forbid: the target has no knob {', '.join(unknown)}; it has {', '.join(has)}")
    remaining = tuple(knob for knob in space.knobs if knob.name not in forbidden)
    if not remaining:
        raise ValueError(f"--forbid leaves nothing to tune: it forbids all of {', '.join(space.names)}")
    return ConfigurationSpace(remaining)
