"""The grid that a run searches on a target, within its budget of cores, and what follows from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from rich.console import Console

from envs.live import RECONNECT_S, LiveServing
from envs.target_space import check_space, cores_of
from rrl.agent import Task
from rrl.command_line.opening.core_budget import over_budget, share
from rrl.command_line.opening.earlier import limits_to_json
from rrl.command_line.opening.reach import connected
from rrl.command_line.opening.search_space import space_of
from rrl.command_line.options.option_values import concurrency_of, seconds, tuning_intervals
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.pins import pins_of
from rrl.joint import of_models
from rrl.objective import Objective, make_objective
from rrl.queueing.machine import Machine
from rrl.records import EMBEDDED, Header
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.stop import Stop
from serving_adapter.target import Target
from serving_adapter.target.open_inference.joint_target import JointTarget
from serving_adapter.target.open_inference.whole_target import WholeTarget


@dataclass(frozen=True)
class SearchGrid:
    """The configurations that may be tried on a target, and what follows from them."""

    options: TuneOptions
    target: Target
    found: dict[str, int]  # In force on the target. Empty where it tells no knob.
    space: ConfigurationSpace
    cores: int | None  # Of the target's machine, as far as known; the options have the model's budget.

    @classmethod
    def of(
        cls, options: TuneOptions, target: Target, console: Console, start: Configuration | None = None
    ) -> SearchGrid:
        """The grid around a start, by default around what is found on the target."""
        found = target.configuration()
        _check_whole(options, target)
        space = space_of(options, target, found, start or found, console)
        return cls(options, target, found, space, cores_of(target, options.cores))

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
    def pinned(self) -> dict[str, int]:
        """The knobs that the options set to a value."""
        if isinstance(self.target, JointTarget):
            return of_models({name: pins_of(self.options.pin, name) for name in self.target.members})
        return pins_of(self.options.pin, self.target.model)

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
            reconnect_s=math.inf if self.options.watches else RECONNECT_S,
            advise=self.options.advise,
            sleep=stop.sleep,
            known=known,
        )

    def task(self, machine: Machine | None = None) -> Task:
        """What an agent is to do here."""
        return Task(
            self.space,
            self.objective,
            self.cores,
            machine,
            excluded=self.over_budget,
            settles=True,
            found=self.found,
            concurrency=concurrency_of(self.options),
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
            cores=self.cores,
            start=self.space.configuration(start),
            interval_s=options.interval_s,
            settle_s=options.settle_s,
            intervals=tuning_intervals(options),
            duration_s=None if options.duration is None else seconds(options.duration),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=None if options.machine is None else str(options.machine.absolute()),
            validation=options.validation,
            limits=limits_to_json(options),
            found_config_pbtxt=target.config_text(),
            metrics_url=options.metrics_url,
            server=target.server or None,
        )


def _check_whole(options: TuneOptions, target: Target) -> None:
    """ValueError for options that mean nothing to a model that others are parts of."""
    if not isinstance(target, WholeTarget):
        return
    parts = f"{target.model} is tuned by its parts, {', '.join(target.members)}"
    if options.machine is not None:
        raise ValueError(f"--machine is of one model, and {parts}: leave it away")
    if options.objective == "least-resources":
        raise ValueError(
            f"--objective least-resources needs to know what each model may take of the limit, and {parts}: "
            "take latency or strict-slo"
        )
    if options.objective not in ("latency", "strict-slo"):
        raise ValueError(
            f"--objective {options.objective} is of one model, and {parts}: take latency or strict-slo"
        )


def with_its_share(
    options: TuneOptions, target: Target, found: Configuration, beside: Sequence[str], console: Console
) -> TuneOptions:
    """The options with the cores that the models beside this one leave of the budget, where there is one."""
    if options.cores is None and not beside and not isinstance(target, JointTarget):
        return options
    budget = options.cores or cores_of(target)
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
