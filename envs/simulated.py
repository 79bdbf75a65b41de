"""`rrl/SimulatedServing-v0`: the serving environment over the discrete-event simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from envs.arrival_chunks import ArrivalChunks
from envs.serving import ServingEnv
from envs.simulated_measurement import measurement_of
from rrl.interval import MeasuredInterval, Watch
from rrl.knobs import KNOBS
from rrl.measurement import Measurement, Progress
from rrl.objective import MeanLatency, Objective
from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.queueing.simulator import Discipline, Simulation
from rrl.space import Configuration, ConfigurationSpace
from serving_adapter.load.arrivals import Arrivals, Poisson
from serving_adapter.load.sizes import Sizes

PAPER_SPACE = (
    "instances=1:10,inter_op_threads=1:10,intra_op_threads=1:10"  # RRL, section 6.1: 1,000 configurations
)
PAPER_RATE_PER_S = 14.0  # a request every 70 ms, as in RRL's released script

_LOOK_SHARES = (0.25, 0.5, 0.75)  # of an interval: when `interrupt` is shown its progress
_VARIATION_DRAWS = 8192  # service-time factors, drawn once an episode and used in turn


class SimulatedServing(ServingEnv):
    """
    ## Description

    A `ServingEnv` whose server is simulated: a queue (first come, first served), a batcher, and the workers
    of a machine, which is a table of service times. A step takes some tens of microseconds. What waits or is
    in service at an interval's end is carried into the next, and with it the consequences of a bad choice.
    A copy (`copy.deepcopy`, `pickle`) goes on as the environment itself would.

    ## Action Space

    As `ServingEnv`: the index of each knob's value. Knobs left out of the space count as 1 (0 for the delay).
    A change is in force at once, for the batches that start from then on; there is no settling time.

    ## Observation Space

    As `ServingEnv`. Latencies are of the requests completed in the interval, the rate of those arrived in it.
    CPU utilisation is thread-seconds in service by core-seconds, at most 1. GPU utilisation is not simulated.

    ## Rewards

    As `ServingEnv`: minus the cost.

    ## Starting State

    Time 0, an empty server, the starting configuration; one interval is run.

    ## Episode End

    Never, unless the arrival process ends: then the interval with its last arrival is truncated.

    ## Arguments

    | Parameter               | Type                         | Default         | Description                |
    |-------------------------|------------------------------|-----------------|----------------------------|
    | `machine`               | `Machine`, path or int       | `0`             | an int invents one         |
    | `space`                 | `ConfigurationSpace` or text | RRL's 10x10x10  | e.g. `"instances=1:4"`     |
    | `objective`             | `Objective`                  | `MeanLatency()` | what to minimise           |
    | `arrivals`              | `Arrivals` or float          | `14.0`          | a number: Poisson, per s   |
    | `requests_per_interval` | int                          | `100`           | length of an interval      |
    | `interval_s`            | float                        | `None`          | its length in seconds      |
    |                         |                              |                 | instead                    |
    | `sizes`                 | `Sizes`                      | `None`          | of requests; None: equal   |
    | `size_of_table`         | float                        | `1.0`           | size the table's times are |
    |                         |                              |                 | for; others in proportion  |
    | `padded_batches`        | bool                         | `False`         | a batch costs its largest, |
    |                         |                              |                 | not its mean size          |
    | `service_variation`     | float                        | `0.0`           | σ of lognormal service     |
    |                         |                              |                 | times (of mean 1)          |
    | `start`                 | configuration                | as `rrl-serve`  | where an episode starts    |
    | `cores`                 | int                          | `10`            | for the CPU utilisation,   |
    |                         |                              |                 | those of all nodes         |
    | `carry_backlog`         | bool                         | `True`          | False: an interval's       |
    |                         |                              |                 | requests are all answered, |
    |                         |                              |                 | the next starts empty      |
    |                         |                              |                 | (as in RRL's script)       |
    | `discipline`            | "fcfs" or "ps"               | `"fcfs"`        | a batch's time is fixed at |
    |                         |                              |                 | its start, or the batches  |
    |                         |                              |                 | in service share it out    |
    | `slowdown`              | (int, float)                 | `None`          | from that step on (the     |
    |                         |                              |                 | first is 0) batches take   |
    |                         |                              |                 | so many times as long      |

    `rrl-serve` starts with one instance, as many intra-op threads as cores, and no batching.

    ## Version History

    * v0: initial version
    """

    def __init__(
        self,
        machine: Machine | str | Path | int = 0,
        space: ConfigurationSpace | str = PAPER_SPACE,
        objective: Objective | None = None,
        arrivals: Arrivals | float = PAPER_RATE_PER_S,
        requests_per_interval: int = 100,
        interval_s: float | None = None,
        sizes: Sizes | None = None,
        size_of_table: float = 1.0,
        padded_batches: bool = False,
        service_variation: float = 0.0,
        start: Configuration | None = None,
        cores: int = 10,
        carry_backlog: bool = True,
        discipline: Discipline = "fcfs",
        slowdown: tuple[int, float] | None = None,
    ) -> None:
        grid = ConfigurationSpace.parse(space) if isinstance(space, str) else space
        _check_kind("space", grid, "a ConfigurationSpace, or a text such as 'instances=1:4'", "knobs")
        if isinstance(arrivals, int | float | np.integer | np.floating):
            arrivals = Poisson(float(arrivals))
        _check_kind("arrivals", arrivals, "a number per second, or Arrivals such as Poisson(14.0)", "times_s")
        objective = MeanLatency() if objective is None else objective
        _check_kind("objective", objective, "an Objective such as MeanLatency()", "cost", "unit")
        if sizes is not None:
            _check_kind("sizes", sizes, "Sizes such as LognormalSizes(32, 0.6)", "sample")
        for name, count in (("requests_per_interval", requests_per_interval), ("cores", cores)):
            if not isinstance(count, int | np.integer):
                raise ValueError(f"{name} must be a whole number, got {count!r}")
        if interval_s is not None and not 0 < interval_s < math.inf:
            raise ValueError(f"interval_s must be a positive number of seconds, got {interval_s:g}")
        if not 0 < size_of_table < math.inf:
            raise ValueError(f"size_of_table must be a positive size, got {size_of_table:g}")
        if requests_per_interval < 1 or cores < 1 or not 0 <= service_variation < math.inf:
            raise ValueError(
                "requests_per_interval and cores must be at least 1 and service_variation not negative, got "
                f"{requests_per_interval}, {cores}, {service_variation:g}"
            )
        check_slowdown(slowdown)
        self.machine = _machine(machine)
        check_covered(grid, self.machine)
        default = {"instances": 1, "intra_op_threads": cores}
        nearest = grid.nearest({name: default.get(name, name != "max_queue_delay_us") for name in grid.names})
        super().__init__(grid, objective, nearest if start is None else grid.number(start))
        self.arrivals = arrivals
        self.requests_per_interval = requests_per_interval
        self.interval_s = interval_s
        self.sizes = sizes
        self.size_of_table = size_of_table
        self.padded_batches = padded_batches
        self.service_variation = service_variation
        self.cores = cores
        self.carry_backlog = carry_backlog
        self.discipline = discipline
        self.slowdown = slowdown
        self.slower_machine = None if slowdown is None else self.machine.slower(slowdown[1])
        # An episode replaces these four.
        self._stream = _ArrivalStream(iter(()))
        self._sizes_rng = np.random.default_rng(0)
        self._simulation = self._empty_server(np.ones(1))
        self._decision = -1

    def _begin(self, number: int) -> None:
        arrivals_rng, self._sizes_rng, variation_rng = self.np_random.spawn(3)
        self._stream = _ArrivalStream(ArrivalChunks(self.arrivals, arrivals_rng))
        if self._workload_ended():
            raise ValueError("the arrival process yields no arrivals; give one with at least one request")
        self._simulation = self._empty_server(lognormal_factors(self.service_variation, variation_rng))
        self._decision = -1  # reset's interval

    def _empty_server(self, service_factors: np.ndarray) -> Simulation:
        return Simulation(
            self.machine,
            discipline=self.discipline,
            padded_batches=self.padded_batches,
            service_factors=service_factors,
        )

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        return MeasuredInterval(self._measurement(number, watch))

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        simulation = self._simulation
        self._age_machine()
        if not self.carry_backlog:
            simulation.drop_backlog()
        configuration = self.space.configuration(number)
        begin_s, backlog_before = simulation.now_s, simulation.backlog
        end_s = self._end_s(begin_s)
        aborted, arrived, completed = "", 0, 0
        runs: list[Outcome] = []
        seen: list[np.ndarray] = []
        for fraction in (*(_LOOK_SHARES if watch.interrupt else ()), 1.0):
            until_s = end_s if fraction == 1.0 else begin_s + fraction * (end_s - begin_s)
            times_s = self._stream.take_before(until_s)
            runs.append(simulation.run(times_s, self._work(len(times_s)), configuration, until_s))
            seen.append(times_s)
            arrived += len(times_s)
            completed += len(runs[-1].finish_s)
            if fraction < 1.0 and watch.interrupt:
                backlog = simulation.backlog
                progress = Progress(until_s - begin_s, arrived, completed, backlog, backlog - backlog_before)
                aborted = watch.interrupt(progress)
                if aborted:
                    break
        if not self.carry_backlog and not aborted and simulation.backlog:
            drained = simulation.drain(configuration)
            runs.append(drained._replace(busy_thread_s=0.0))  # spent after the interval's end
        outcome = Outcome.joined(runs)
        duration_s = simulation.now_s - begin_s
        offsets_s = (seen[0] if len(seen) == 1 else np.concatenate(seen)) - begin_s
        backlog = simulation.backlog
        return measurement_of(outcome, offsets_s, duration_s, backlog, backlog_before, self.cores, aborted)

    def _age_machine(self) -> None:
        """Counts a decision, and slows the machine down from the one on that `slowdown` names."""
        if self.slowdown is not None and self._decision == self.slowdown[0]:
            assert self.slower_machine is not None
            self._simulation.machine = self.slower_machine
        self._decision += 1

    def _work(self, count: int) -> np.ndarray | None:
        """(count,) the next requests' service times as multiples of the table's."""
        if self.sizes is None:
            return None
        return self.sizes.sample(self._sizes_rng, count) / self.size_of_table

    def _end_s(self, begin_s: float) -> float:
        """When the interval that begins now ends: just before the first arrival after it."""
        if self.interval_s is not None:
            return begin_s + self.interval_s
        count = self.requests_per_interval
        while (end_s := self._stream.time_s(count)) <= begin_s:  # all arrive at one moment: take them all
            count += 1
        if end_s < math.inf:
            return end_s
        # The trace ends in this interval: its last arrival is given the mean gap to be served in.
        remaining = self._stream.remaining
        last_s = self._stream.time_s(remaining - 1)
        return last_s + max((last_s - begin_s) / remaining, 1e-3)

    def _workload_ended(self) -> bool:
        return self._stream.time_s(0) == math.inf


def _check_kind(name: str, given: object, expected: str, *has: str) -> None:
    """ValueError for an argument without what the environment asks of it; a class is no object of it."""
    if isinstance(given, type) or not all(hasattr(given, each) for each in has):
        raise ValueError(f"{name} must be {expected}, got {given!r}")


def check_slowdown(slowdown: tuple[int, float] | None) -> None:
    """ValueError for a slowdown that cannot be."""
    if slowdown is not None and not (slowdown[0] >= 0 and 0 < slowdown[1] < math.inf):
        raise ValueError(
            "a slowdown is a decision of at least 0 and a positive factor, "
            f"got {slowdown[0]} and {slowdown[1]:g}"
        )


def lognormal_factors(sigma: float, rng: np.random.Generator) -> np.ndarray:
    """(draws,) factors of mean 1 whose logarithm has standard deviation `sigma`; a single 1 for 0."""
    if sigma == 0:
        return np.ones(1)
    return np.exp(sigma * rng.standard_normal(_VARIATION_DRAWS) - sigma**2 / 2)


class _ArrivalStream:
    """An arrival process read ahead as far as is asked."""

    def __init__(self, chunks: Iterator[np.ndarray]) -> None:
        self._chunks = chunks
        self._times_s = np.empty(0)
        self._next = 0

    @property
    def remaining(self) -> int:
        """Arrivals read and not yet taken. These are the last ones once `time_s` has answered infinity."""
        return len(self._times_s) - self._next

    def time_s(self, k: int) -> float:
        """When the k-th (from 0) of the arrivals to come arrives; infinity if it never does."""
        while self.remaining <= k:
            if not self._read():
                return math.inf
        return float(self._times_s[self._next + k])

    def take_before(self, until_s: float) -> np.ndarray:
        """The arrivals to come before `until_s`, which are then behind us."""
        while self.remaining == 0 or self._times_s[-1] < until_s:
            if not self._read():
                break
        first = self._next
        self._next = first + int(self._times_s[first:].searchsorted(until_s))
        return self._times_s[first : self._next]

    def _read(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._times_s = np.concatenate([self._times_s[self._next :], chunk])
        self._next = 0
        return True


def _machine(machine: Machine | str | Path | int) -> Machine:
    if isinstance(machine, Machine):
        return machine
    return Machine.invent(int(machine)) if isinstance(machine, int | np.integer) else Machine.load(machine)


def check_covered(space: ConfigurationSpace, machine: Machine) -> None:
    """ValueError for a space beyond the table, where more of a knob would seem to cost nothing."""
    for knob in space.knobs:
        if knob.name not in KNOBS:
            raise ValueError(f"unknown knob {knob.name!r}; the simulator knows {', '.join(KNOBS)}")
        if knob.name != "max_queue_delay_us" and knob.values[0] < 1:
            raise ValueError(f"knob {knob.name!r}: values must be at least 1, got {knob.values[0]}")
        largest = machine.largest(knob.name)
        if largest is not None and knob.values[-1] > largest:
            raise ValueError(
                f"{knob.name}={knob.values[-1]} lies beyond the machine's table, which ends at {largest}: "
                "narrow the space, or measure a larger table"
            )
