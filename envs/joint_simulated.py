"""Several models on one simulated machine, as one environment: their requests share its cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from envs.serving import ServingEnv
from envs.simulated import lognormal_factors
from envs.simulated_measurement import measurement_of
from rrl.interval import MeasuredInterval, Watch
from rrl.joint import JointSpace, by_model, together
from rrl.measurement import Progress
from rrl.objective import MeanLatency, Objective
from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.queueing.shared_machine import Contention, SharedMachine
from rrl.space import Configuration, ConfigurationSpace

LOOK_SHARES = (0.25, 0.5, 0.75, 1.0)  # of an interval: when a watch is shown its progress
MOST_LEFT = 0.03  # of the requests, at the end of a run whose queue does not grow for ever


class JointSimulatedServing(ServingEnv):
    """A `ServingEnv` of several models that share the cores of one simulated machine.

    Every model has Poisson arrivals, a queue and a batcher of its own. A batch slows all others down
    (`rrl.queueing.shared_machine`). The space is a joint one (`rrl.joint`), and `measurement` is of all
    requests, with that of each model in `models`. A change is in force at once.

    | Parameter    | Type                         | Default         | Description                            |
    |--------------|------------------------------|-----------------|----------------------------------------|
    | `machines`   | model -> `Machine`           |                 | what batches take alone                |
    | `rates`      | model -> float               |                 | requests per s                         |
    | `space`      | `ConfigurationSpace`         |                 | joint: `a.instances=1:4,...`           |
    | `objective`  | `Objective`                  | `MeanLatency()` | what to minimise                       |
    | `contention` | `Contention`                 | 4 cores         | how batches slow each other down       |
    | `interval_s` | float                        | `4.0`           | length of an interval                  |
    | `variation`  | float                        | `0.1`           | σ of lognormal service times           |
    | `drift_sd`   | float                        | `0.0`           | σ of ln of the speed of each interval  |
    | `start`      | configuration                | first           | where an episode starts                |
    """

    def __init__(
        self,
        machines: Mapping[str, Machine],
        rates: Mapping[str, float],
        space: ConfigurationSpace,
        objective: Objective | None = None,
        contention: Contention | None = None,
        interval_s: float = 4.0,
        variation: float = 0.1,
        drift_sd: float = 0.0,
        start: Configuration | None = None,
    ) -> None:
        self.joint = JointSpace.of(space)
        if not set(self.joint.models) == set(machines) == set(rates):
            raise ValueError(
                f"a joint simulation needs a machine and a rate for each of {', '.join(self.joint.models)}, "
                f"got {', '.join(machines)} and {', '.join(rates)}"
            )
        if not 0 < interval_s < math.inf or min(rates.values()) <= 0:
            raise ValueError(f"interval_s and rates must be positive, got {interval_s:g} and {dict(rates)}")
        number = 0 if start is None else space.number({name: start[name] for name in space.names})
        super().__init__(space, objective or MeanLatency(), number)
        self.machines = [machines[model] for model in self.joint.models]
        self.rates_per_s = np.array([rates[model] for model in self.joint.models])
        self.contention, self.interval_s = contention or Contention(), interval_s
        self.variation, self.drift_sd = variation, drift_sd
        self._server = SharedMachine(self.machines, self.contention)
        self._rng = np.random.default_rng(0)

    def _begin(self, number: int) -> None:
        self._rng, of_service = self.np_random.spawn(2)
        factors = lognormal_factors(self.variation, of_service)
        self._server = SharedMachine(self.machines, self.contention, factors)

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        configurations = self.configurations_of(number)
        begin_s, before = self._server.now_s, self._server.backlogs
        speed = math.exp(self.drift_sd * float(self._rng.standard_normal()))
        machines = [machine.slower(speed) if self.drift_sd else machine for machine in self.machines]
        self._server.now_on(machines)
        offsets_s = [self._arrivals_s(rate) for rate in self.rates_per_s]
        runs: list[list[Outcome]] = []
        aborted, until_s = "", begin_s
        for share in LOOK_SHARES if watch.interrupt else (1.0,):
            last_s, until_s = until_s, begin_s + share * self.interval_s
            new = [begin_s + each for each in offsets_s]
            new = [each[(each >= last_s) & (each < until_s)] for each in new]
            runs.append(self._server.run(new, configurations, until_s))
            if watch.interrupt and share < 1:
                aborted = watch.interrupt(self._progress(runs, offsets_s, until_s - begin_s, before))
                if aborted:
                    break
        outcomes = [Outcome.joined([run[m] for run in runs]) for m in range(len(configurations))]
        duration_s = until_s - begin_s
        arrived_s = [each[each < duration_s] for each in offsets_s]
        backlogs, cores = self._server.backlogs, self.contention.cores
        measured = {
            model: measurement_of(
                outcomes[m], arrived_s[m], duration_s, int(backlogs[m]), int(before[m]), cores, aborted
            )
            for m, model in enumerate(self.joint.models)
        }
        return MeasuredInterval(together(measured))

    def configurations_of(self, number: int) -> list[dict[str, int]]:
        """What each model has under a joint configuration."""
        found = by_model(self.space.configuration(number))
        return [found[model] for model in self.joint.models]

    def _arrivals_s(self, rate_per_s: float) -> np.ndarray:
        count = self._rng.poisson(rate_per_s * self.interval_s)
        return np.sort(self._rng.uniform(0.0, self.interval_s, count))

    def _progress(
        self, runs: Sequence[list[Outcome]], offsets_s: list[np.ndarray], elapsed_s: float, before: np.ndarray
    ) -> Progress:
        arrived = sum(int((each < elapsed_s).sum()) for each in offsets_s)
        completed = sum(len(outcome.finish_s) for run in runs for outcome in run)
        backlog = int(self._server.backlogs.sum())
        return Progress(elapsed_s, arrived, completed, backlog, backlog - int(before.sum()))


def true_costs(env: JointSimulatedServing, numbers: Sequence[int], requests: int = 4000) -> np.ndarray:
    """(K,) mean latency in ms of all requests under each, in a long run from an empty server.

    Infinite where a queue grows for ever. All meet the same arrivals and the same service times.
    """
    rng = np.random.default_rng(12345)
    duration_s = requests / float(env.rates_per_s.sum())
    arrivals_s = [np.sort(rng.uniform(0.0, duration_s, rng.poisson(r * duration_s))) for r in env.rates_per_s]
    factors = lognormal_factors(env.variation, rng)
    costs = np.empty(len(numbers))
    for k, number in enumerate(numbers):
        server = SharedMachine(env.machines, env.contention, factors)
        outcomes = server.run(arrivals_s, env.configurations_of(int(number)), duration_s)
        left = int(server.backlogs.sum())
        latency_s = [each.finish_s - each.arrival_s for each in outcomes]
        answered = sum(map(len, latency_s))
        grows = left > max(20, MOST_LEFT * requests)
        costs[k] = math.inf if grows else 1e3 * sum(map(np.sum, latency_s)) / max(answered, 1)
    return costs
