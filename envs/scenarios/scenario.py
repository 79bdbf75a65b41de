"""A scenario: the machine of one simulated tuning run, and how its truth departs from the queueing model.

| field | what it changes |
|---|---|
| `discipline` | "ps": a batch slows down whenever another starts beside it (limited processor sharing) |
| `service_variation` | σ of lognormal service times, whose squared coefficient of variation is exp(σ²) - 1 |
| `sizes`, `size_of_table` | sizes of requests, and the size that the table's times are for |
| `carry_backlog` | requests wait into the next interval; else each interval starts empty |
| `slowdown` | (decision, factor): from that decision on, counted from 0, all takes `factor` times as long |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from envs.simulated import SimulatedServing, check_slowdown
from rrl.objective import Objective
from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Discipline
from rrl.space import Configuration, ConfigurationSpace
from serving_adapter.load.arrivals import Arrivals
from serving_adapter.load.sizes import Sizes


@dataclass(frozen=True)
class Scenario:
    """A machine, and the rules by which it serves."""

    machine: Machine
    name: str
    discipline: Discipline = "fcfs"
    service_variation: float = 0.0  # σ
    sizes: Sizes | None = None  # None: all equal
    size_of_table: float = 1.0
    carry_backlog: bool = False
    slowdown: tuple[int, float] | None = None  # decision (from 0), factor
    cores: int = 10  # of the machine; the CPU utilisation is a share of them

    def __post_init__(self) -> None:
        check_slowdown(self.slowdown)

    def environment(
        self,
        space: ConfigurationSpace,
        objective: Objective,
        arrivals: Arrivals,
        requests_per_interval: int = 100,
        start: Configuration | None = None,
    ) -> SimulatedServing:
        """The scenario as an environment; ValueError if the space does not suit the machine."""
        return SimulatedServing(
            self.machine,
            space,
            objective,
            arrivals,
            requests_per_interval,
            sizes=self.sizes,
            size_of_table=self.size_of_table,
            service_variation=self.service_variation,
            start=start,
            cores=self.cores,
            carry_backlog=self.carry_backlog,
            discipline=self.discipline,
            slowdown=self.slowdown,
        )

    def slowed(self) -> Scenario:
        """The scenario after its slow-down, with the slower machine for good."""
        if self.slowdown is None:
            return self
        return replace(self, machine=self.machine.slower(self.slowdown[1]), slowdown=None)
