"""The grid that a run searches: the knobs given or the usual ones, around the start, within the limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from rich.console import Console

from envs.live import LiveServing
from envs.target_space import check_space, cores_of, default_space
from rrl.agent import Task
from rrl.command_line.core_budget import over_budget, share
from rrl.command_line.earlier import limits_to_json
from rrl.command_line.options import TuneOptions, forbidden_knobs, seconds, tuning_intervals
from rrl.command_line.reach import connected
from rrl.objective import Objective, make_objective
from rrl.queueing.machine import Machine
from rrl.records import EMBEDDED, Header
from rrl.space import Configuration, ConfigurationSpace, with_values
from rrl.tuning.stop import Stop
from serving_adapter.target import Target


@dataclass(frozen=True)
class SearchGrid:
    """The configurations that may be tried on a target, and what follows from them."""

    options: TuneOptions
    target: Target
    found: dict[str, int]  # In force on the target. Empty where it tells no knob.
    space: ConfigurationSpace

    @classmethod
    def of(
        cls, options: TuneOptions, target: Target, console: Console, start: Configuration | None = None
    ) -> SearchGrid:
        """The grid around a start, by default around what is found on the target."""
        found = target.configuration()
        return cls(options, target, found, space_of(options, target, found, start or found, console))

    def check(self) -> None:
        """ValueError where the target has not these knobs, or not these values."""
        check_space(self.space, self.target.knobs(), self.found)

    @property
    def objective(self) -> Objective:
        return make_objective(self.options.objective, self.options.slo_p95_ms)

    @cached_property
    def over_budget(self) -> frozenset[int]:
        """The configurations that use more cores than the options allow, where they limit them."""
        cores = self.options.cores
        return frozenset() if cores is None else over_budget(self.space, cores, self.found)

    @property
    def tuned_as_found(self) -> dict[str, int]:
        """The values found of the knobs of the grid, as far as the target tells them."""
        return {name: self.found[name] for name in self.space.names if name in self.found}

    def within_budget(self, beside: Sequence[str], console: Console) -> SearchGrid:
        """The same grid, limited to the cores that the models beside this one leave of the budget."""
        options = with_its_share(self.options, self.target, self.found, beside, console)
        return dataclasses.replace(self, options=options)

    def environment(self, stop: Stop, known: Configuration | None = None) -> LiveServing:
        """The target as an environment. `known` is the start of the run that is resumed."""
        return LiveServing(
            self.target,
            self.space,
            self.objective,
            self.options.interval_s,
            self.options.settle_s,
            advise=self.options.advise,
            sleep=stop.sleep,
            known=known,
        )

    def task(self, machine: Machine | None = None) -> Task:
        """What an agent is to do here."""
        return Task(
            self.space,
            self.objective,
            cores_of(self.target, self.found),
            machine,
            in_place=self.target.in_place_knobs,
            excluded=self.over_budget,
            settles=True,
            found=self.found,
            observes_gpus=self.target.tells_gpus,
        )

    def header(self, start: int) -> Header:
        """What the journal says of a run on this grid that starts with the configuration of that number."""
        options, target = self.options, self.target
        return Header(
            space=self.space,
            objective=options.objective,
            slo_p95_ms=options.slo_p95_ms,
            agent=options.agent,
            seed=options.seed,
            target=EMBEDDED if options.target is None else target.address,
            model=target.model,
            found=self.found,
            cores=cores_of(self.target, self.found),
            start=self.space.configuration(start),
            interval_s=options.interval_s,
            settle_s=options.settle_s,
            intervals=tuning_intervals(options),
            duration_s=None if options.duration is None else seconds(options.duration),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=None if options.machine is None else str(options.machine.absolute()),
            validation=options.validation,
            limits=limits_to_json(options),
            found_config_pbtxt=target.config_pbtxt(),
            metrics_url=options.metrics_url,
            server=target.server or None,
        )


def space_of(
    options: TuneOptions, target: Target, found: Configuration, start: Configuration, console: Console
) -> ConfigurationSpace:
    """The grid given, or the usual one of the target's knobs. The start's values are added to it."""
    given = (
        ConfigurationSpace.parse(options.knobs)
        if options.knobs
        else default_space(target.knobs(), cores_of(target, found))
    )
    given = without_forbidden(given, options.forbid, found)
    given = _with_batches_for_every_request(given, options, target, start, console)
    space = with_values(given, start)
    if options.knobs:
        _say_what_was_added(given, space, start, console)
    return space


def _with_batches_for_every_request(
    given: ConfigurationSpace, options: TuneOptions, target: Target, start: Configuration, console: Console
) -> ConfigurationSpace:
    """The grid without batches that a request of several items may not fit into."""
    bearable = _without_smaller_batches(given, start)
    if bearable == given or not target.requests_hold_several_items():
        return given
    why = "some requests hold several items, and Triton answers none that holds more than that"
    least = f"max_batch_size stays at {start['max_batch_size']} or above: {why}"
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


def with_its_share(
    options: TuneOptions, target: Target, found: Configuration, beside: Sequence[str], console: Console
) -> TuneOptions:
    """The options with the cores that the models beside this one leave of the budget, where there is one."""
    if options.cores is None and not beside:
        return options
    budget = options.cores or cores_of(target, found)
    if budget is None:
        raise ValueError(
            f"{target.address} does not tell how many cores its machine has, which its models are to share; "
            "give --cores"
        )
    others = []
    for name in beside:
        with closing(connected(options, str(options.target), name, control=False)) as other:
            others.append(other.configuration())
    cores = share(budget, found, others)
    beyond = ", as it was found" if cores > budget else ""
    console.print(f"{target.model} may use {cores} of the budget of {budget} cores{beyond}")
    return dataclasses.replace(options, cores=cores)
