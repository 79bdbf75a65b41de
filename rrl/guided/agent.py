"""RRL with a prior: the default agent.

Region-based Q-learning as in RRL (section 4), but of what a queueing model gets wrong rather than of all the
latency. Telemetry teaches a table of service times (`service_times`), from which a queueing model and
simulation predict the latency of every configuration at every load (`latency_prior`): the prior. The
FTRL-trained network (section 5.1) learns the logarithm of what was observed over what was predicted, and the
region around each configuration visited is updated with it (eq. 1, 2; γ = 0).

| symbol | here | meaning |
|---|---|---|
| P(c) | `LatencyPrior` | latency that the prior predicts for configuration c at the load expected |
| ρ_t(s, c) | `RegionResidual` | perceived ln(latency / P) at load level s, by equations (1) and (2) |
| Q_t(c) | `PredictedCosts` | expected cost of the latencies P·exp(ρ), over simulated intervals |
| κ | `_optimism`, `_optimism_overloaded` | standard deviations by which service times count as shorter |

How a configuration is chosen:

| rule | why | setting |
|---|---|---|
| The first is central and good under a heavy load. | Most is learned from there. | `first_share` |
| Early ones have the lowest cost admitted by κ. | Little is known there. | `exploring`, `optimism` |
| A few decisions look further than others. | A prediction may be far off. | `looks` |
| Later ones have the lowest cost in the mean. | Near its capacity the unknown costs more. | |
| None is predicted to be unstable. | Its queue would grow without end. | `stable_share` |
| Few would be with slower service times. | The prediction may be wrong. | `pessimism`, `least_safe` |
| If all are unstable, what serves most is taken. | Its queue grows most slowly. | `overload_pace` |
| Exploration begins anew when the machine changes. | All known times shift. | `change` |

Where a change itself costs users something (`change_costs`), these rules are added:

| rule | why | setting |
|---|---|---|
| A change must save so much for each process started. | Users feel each start. | `reluctance` |
| It must pay for the queue that grows meanwhile. | Requests wait for the start. | `beside_a_start` |
| It must not be expected to end far worse. | It is not soon undone. | `gamble` |
| Fewer decisions explore or look further. | Each probe is a change. | `exploring_costly` |
| An overload is first relieved in place, if possible. | A reload lasts. | `gamble` |
| Measured costs count for more, but fade. | The queue model is less right. | `residual_memory` |
| The prior's error is mostly shared by all. | Else the unknown looks better. | `residual_common` |
| The first interval of new processes teaches nothing. | Some are slow at first. | `gamble` |
| Moves of service times are mostly the machine's. | The machine drifts. | `common_share` |
| A second interval must confirm its change. | A hiccup passes. | `steady` |
| Costs are means over two speeds of the machine. | A choice must pay for long. | `machine_sd` |
| Near ties go to capacity, then to the shorter tail. | A rising load needs no change. | `headroom` |
"""

from __future__ import annotations

import math
from collections import Counter, deque
from functools import partial
from statistics import median

import numpy as np

from rrl.agent import Agent, Task, Transition
from rrl.guided import telemetry
from rrl.guided.change_costs import NONE_YET, ChangeCosts
from rrl.guided.latency_prior import Circumstances, LatencyPrior
from rrl.guided.load_forecast import LoadForecast
from rrl.guided.machine_watch import MachineMove, MachineWatch
from rrl.guided.predicted_costs import PredictedCosts
from rrl.guided.region_residual import RegionResidual
from rrl.guided.service_time_process import PROCESS_WEIGHTS, WEIGHTS
from rrl.guided.service_times import ServiceTimeModel
from rrl.guided.settings import GUIDED, GuidedSettings
from rrl.measurement import Measurement, ServiceTimes
from rrl.objective import in_unit
from rrl.region.estimator import LatencyEstimator

# Up to this σ service times count as deterministic.
MAX_DETERMINISTIC_SD = 0.08
# The usual σ is the median over so many intervals.
USUAL_INTERVALS = 20
# A difference in headroom or tail is worth a word from this ratio on.
MIN_GAIN_TO_MENTION = 1.01
# From this standard deviation of ln of a service time on, a choice is explained as exploration.
MIN_SD_TO_CALL_UNKNOWN = 0.1
# The share of an interval's requests that may wait when it begins and still count as no backlog.
MAX_SHARE_CARRIED_OVER = 0.02


class GuidedRRL(Agent):
    """The agent. It is deterministic but for the seeded arrivals of its simulations and its network's start.

    It is longer than other classes: it holds all that is known of what is in force, for which every rule of
    the module's tables asks.
    """

    def __init__(
        self,
        task: Task,
        settings: GuidedSettings = GUIDED,
        seed: int = 0,
        background_training: bool = False,
    ) -> None:
        self.space, self.settings = task.space, settings
        self._objective = task.objective
        changes_cost = bool(task.reloading)
        weights = PROCESS_WEIGHTS if changes_cost else WEIGHTS
        self.service_times = ServiceTimeModel(task.space, task.cores, weights)
        self.forecast = LoadForecast()
        self.prior = LatencyPrior(task.space, self.service_times, np.random.default_rng(seed), task.excluded)
        estimator = LatencyEstimator(len(task.space.knobs), settings.estimator, seed)
        self.residual = RegionResidual(task.space, settings, changes_cost, estimator, background_training)
        self._change_costs = ChangeCosts(task, self.prior, settings)
        self.changes = 0  # of the machine, so far
        self._since_change = 0  # decisions
        self._watch = MachineWatch(settings)
        self._overloaded = 0  # decisions in a row without a configuration that seems stable
        self._carries = False
        self._estimates_busy = False  # as a target where changes cost does not tell how many instances were
        self._in_force = NONE_YET
        self._is_new = False  # processes were started for what is in force, and no interval told of it yet
        self._waits = False  # for another interval of it, as the first misleads
        self._left_over = 0  # batches that may still have been in service when the last interval ended
        self._refusals: Counter[int] = Counter()  # by the target, of each configuration
        self._variations: deque[float] = deque(maxlen=USUAL_INTERVALS)  # σ by interval
        self._variation = 0.0
        self._next = self._first()

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self._next)

    def update(self, transition: Transition) -> None:
        """Learns from one interval, unless it has a gap or no cost, and chooses the next configuration."""
        measurement = transition.measurement
        number = self.space.number_of_action(transition.action)
        if number != self._in_force:
            self._watch.put_in_force()
        if not transition.has_cost or measurement.arrivals == 0:
            self._remember_in_force(number, measurement)
            return
        self.forecast.add(measurement.arrivals, measurement.duration_s)
        self._carries = self._carries or measurement.backlog > 0
        if self._warms_up(number, transition):
            self._remember_in_force(number, measurement)
            self._next, self._waits, self._is_new = number, True, False
            return
        move = self._learn_service_times(number, measurement)
        self._remember_in_force(number, measurement)
        if not self.service_times.known or move is MachineMove.MAY_PASS:
            return
        self._since_change += 1
        self.service_times.fit(self._variation)
        self.prior.refresh()
        self._learn_residual(number, measurement)
        self._next, self._waits, self._is_new = self._chosen(), False, False

    def refused(self, number: int) -> None:
        """The target did not take this configuration. Once may be chance.

        After twice neither it nor more instances with the same other knobs are proposed: they need no less
        memory.
        """
        self._refusals[number] += 1
        if self._refusals[number] > 1:
            others = [k for k, name in enumerate(self.space.names) if name != "instances"]
            alike = (self.space.indices[:, others] == self.space.indices[number, others]).all(axis=1)
            more = self.prior.instances >= self.prior.instances[number]
            self.prior.disallow(np.flatnonzero(alike & more))

    def recommended(self) -> int | None:
        """The configuration of the lowest cost in the mean at this load; None where all are overloaded."""
        if not self.service_times.known:
            return None
        stable = self._stable(self.settings.stable_share)
        if len(stable) == 0:
            return None
        costs = self._costs()
        numbers = stable[costs.by_screened(stable, np.ones(len(stable)))[: self.settings.screened_later]]
        return costs.lowest_once_changed(numbers, self._standard_deviations(numbers))

    @property
    def variation(self) -> float:
        """σ of lognormal service times, by what was seen; 0 where they count as deterministic."""
        return self._variation

    def explain(self) -> str:
        """Why the configuration just proposed, in a few words."""
        number = self._next
        if not self.service_times.known:
            return "nothing is known yet: begins in the middle of what should bear a heavy load"
        if self._overloaded:
            bears, load = self.prior.capacity_per_s[number], self.forecast.rate_per_s
            return f"overloaded: takes what serves most, about {bears:.3g} of {load:.3g} requests/s"
        sd = self._standard_deviations(np.array([number]))
        expected, hoped, present = self._expected_of(number, math.exp(-float(self._optimism(sd)[0])))
        if self._waits:
            words = f"stays: expects {expected}, but one interval says little of what was just started"
        elif number == self._in_force:
            other = "nothing worth a change" if self._change_costs_users else "nothing better"
            words = f"stays: expects {expected}, and {other}"
        elif float(sd[0]) > MIN_SD_TO_CALL_UNKNOWN and (self._explores() or self._looks_further()):
            words = f"explores, little is known here: {expected}, perhaps {hoped}, instead of {present}"
        else:
            words = f"expects {expected} instead of {present}{self._and_more(number)}"
        return f"the machine has changed: {words}" if self.changes and self._since_change == 1 else words

    def _and_more(self, number: int) -> str:
        """What else speaks for a change to this configuration, in words."""
        costs, both = self._costs(), np.array([number, self._in_force])
        (proposed, present), (proposed_tail, present_tail) = costs.headroom(both), costs.tail(both)
        words = ", and bears more" if proposed > MIN_GAIN_TO_MENTION * present else ""
        return words + (", and a shorter tail" if present_tail > MIN_GAIN_TO_MENTION * proposed_tail else "")

    def finish_training(self) -> None:
        """Until the network knows all transitions so far; a replay must not run ahead of it."""
        self.residual.finish_training()

    def close(self) -> None:
        """Ends training; raises if its last round failed."""
        self.residual.close()

    def _learn_service_times(self, number: int, measurement: Measurement) -> MachineMove:
        """Learns service times, and says how the machine moved. From a hiccup nothing is learned."""
        configuration = self.space.configuration(number)
        rate_per_s = measurement.arrival_rate_per_s
        estimated = not telemetry.tells_busy_instances(measurement)
        self._estimates_busy = self._change_costs.exist and estimated
        told = [row for row in telemetry.service_times(measurement) if self._of_this(row, number)]
        shares = telemetry.busy_shares(
            telemetry.batches_in_service(measurement), int(self.prior.instances[number])
        )
        expected_s = partial(self.service_times.expected_s, configuration)
        parts = [telemetry.told_apart(row, shares, expected_s) for row in told]
        log_factor, sd = self.service_times.surprise(configuration, parts, rate_per_s, self._variation)
        move = self._watch.judged(log_factor, sd, self._change_costs_users)
        if move is MachineMove.MAY_PASS:
            return move
        if move is MachineMove.CHANGE:
            self.service_times.changed(log_factor)
            self.residual.forget()
            self.changes += 1
            self._since_change = 0
        elif move is MachineMove.DRIFT:
            self.service_times.slowed(self._watch.common_part(log_factor, sd))
        self._learn_variation(measurement, told)
        rows = [row for each in parts for row in each]
        mean_busy = telemetry.mean_busy(shares) if estimated else None
        self.service_times.add(configuration, rows, rate_per_s, self._variation, mean_busy)
        return move

    def _warms_up(self, number: int, transition: Transition) -> bool:
        """True for the first interval of a configuration that processes were started for.

        Its requests took up to a third longer where that was measured. So it only tells whether the
        configuration is overloaded, or far worse than expected.
        """
        known = self.service_times.known and number in self._stable(self.settings.stable_share)
        if not (self._change_costs_users and known) or transition.measurement.aborted:
            return False
        starts = self._change_costs.processes_started(self._in_force, np.array([number]))[0]
        if not (starts or (self._is_new and number == self._in_force)):
            return False
        expected = self._costs().simulated(np.array([number]), np.ones(1))[0]
        return bool(transition.cost <= self.settings.gamble * expected)

    def _remember_in_force(self, number: int, measurement: Measurement) -> None:
        if number != self._in_force:
            self._is_new = bool(self._change_costs.processes_started(self._in_force, np.array([number]))[0])
        self._in_force, self._left_over = number, int(self.prior.instances[number])
        if not measurement.gap:
            self._left_over = min(self._left_over, measurement.backlog)

    def _of_this(self, row: ServiceTimes, number: int) -> bool:
        """False for what may be of batches that began under another configuration."""
        left = 0 if self._in_force == number else self._left_over
        return row.busy_instances <= self.prior.instances[number] and row.count >= 5 * left

    def _learn_variation(self, measurement: Measurement, rows: list[ServiceTimes]) -> None:
        """Learns the usual σ of lognormal service times, once several intervals have told of it.

        Where the target tells none, a typical one is taken.
        """
        told = telemetry.variation(measurement, rows)
        if told is None:
            self._variation = self._variation if self._variations else telemetry.UNTOLD_VARIATION
            return
        self._variations.append(told)
        typical = median(self._variations)
        self._variation = typical if len(self._variations) > 2 and typical > MAX_DETERMINISTIC_SD else 0.0

    def _learn_residual(self, number: int, measurement: Measurement) -> None:
        """Learns what the prior got wrong of this interval.

        Nothing is learned from an interval that was aborted, that began with a backlog, or that was expected
        to answer nothing.
        """
        backlog_before = measurement.backlog - measurement.backlog_growth
        observed_ms = measurement.latency.mean_ms
        few = 2 * self.prior.instances[number]
        if self._change_costs.exist:  # Such an interval begins once the queue of a change has settled.
            few = max(few, MAX_SHARE_CARRIED_OVER * measurement.completions)
        if backlog_before > few or not observed_ms > 0 or measurement.aborted:
            return
        rate_per_s = measurement.arrival_rate_per_s
        given = self._circumstances(rate_per_s, 0.0)
        predicted_ms = self.prior.simulated(np.array([number]), np.ones(1), given).mean_ms[0]
        if not np.isfinite(predicted_ms).all():  # Whole intervals would see no answer.
            return
        self.residual.learn(number, rate_per_s, observed_ms, predicted_ms)

    def _costs(self) -> PredictedCosts:
        """Of configurations at the load expected, seen from what is in force."""
        return PredictedCosts(
            self._objective,
            self.space.threads,
            self.prior,
            self.residual,
            self._change_costs,
            self.settings,
            self._in_force,
            self._circumstances(self.forecast.rate_per_s, self.forecast.log_sd),
        )

    def _circumstances(self, rate_per_s: float, log_sd: float) -> Circumstances:
        return Circumstances(rate_per_s, log_sd, self._variation, self._carries)

    def _first(self) -> int:
        """The most central of those that serve a heavy load well, by what is known before the first interval.

        Without delay: beside service times of unknown length none can be judged.
        """
        self.prior.refresh()
        no_delay = self.prior.delay_s == self.prior.delay_s.min()
        numbers = np.flatnonzero(no_delay & self.prior.allowed)
        rate_per_s = self.settings.first_share * self.prior.capacity_per_s.max()
        latency_ms = self.prior.screened(numbers, np.ones(len(numbers)), rate_per_s).mean_ms[:, 0]
        good = numbers[latency_ms <= self.settings.first_within * latency_ms.min()]
        from_centre = self.space.features[good] - self.space.features.mean(axis=0)
        return int(good[np.argmin(np.linalg.norm(from_centre, axis=1))])

    def _chosen(self) -> int:
        """The configuration of the lowest cost that optimism admits, among those that seem stable."""
        stable = self._change_costs.without_vain_delays(
            self._in_force, self._stable(self.settings.stable_share)
        )
        if len(stable) == 0:
            stable = self._change_costs.without_vain_delays(self._in_force, self._stable(1.0))
        if len(stable) == 0:
            self._overloaded += 1
            return self._largest_capacity(self._optimism_overloaded())
        self._overloaded = 0
        costs = self._costs()
        stable = self._in_place_while_overloaded(stable, costs)
        most = self.settings.screened if self._explores() else self.settings.screened_later
        numbers = stable[costs.by_screened(stable, np.ones(len(stable)))[:most]]
        numbers, sd = self._safe(numbers, self._standard_deviations(numbers), self.forecast.rate_per_s)
        if self._looks_further() or self._explores():
            return costs.lowest(numbers, np.exp(-self._optimism(sd)))
        return costs.lowest_in_the_mean(numbers, sd)

    def _in_place_while_overloaded(self, stable: np.ndarray, costs: PredictedCosts) -> np.ndarray:
        """Where the present cannot bear the load, only what can in place, if not far worse than the best.

        A reload lasts, and the queue grows meanwhile.
        """
        if not self._change_costs_users or self._in_force in stable:
            return stable
        screened = costs.screened(stable, np.ones(len(stable)))
        in_place = ~self._change_costs.reloads(self._in_force, stable)
        relief = stable[in_place & (screened <= self.settings.gamble * screened.min())]
        return relief if len(relief) else stable

    def _stable(self, share: float) -> np.ndarray:
        """The configurations that are predicted to bear the load expected with so much of their capacity."""
        return np.flatnonzero(self.prior.capacity_per_s * share > self.forecast.rate_per_s)

    def _standard_deviations(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) of ln of the service time that matters most to each at the load expected."""
        entries = self.prior.typical_entries(numbers, self.forecast.rate_per_s, self._estimates_busy)
        return self.service_times.standard_deviations(entries)

    @property
    def _change_costs_users(self) -> bool:
        """True if a change of the configuration in force may cost users something."""
        return self._change_costs.exist_from(self._in_force)

    def _expected_of(self, number: int, hopeful: float) -> tuple[str, str, str]:
        """Three costs: a configuration's, with `hopeful` times its service times, and the present one's."""
        numbers, scale = np.array([number, number, self._in_force]), np.array([1.0, hopeful, 1.0])
        costs = self._costs().simulated(numbers, scale)
        stable = self.prior.capacity_per_s[numbers] > scale * self.forecast.rate_per_s
        expected, hoped, present = (
            in_unit(cost, self._objective.unit) if is_stable else "a growing queue"
            for cost, is_stable in zip(costs, stable, strict=True)
        )
        return expected, hoped, present

    def _looks_further(self) -> bool:
        looks = self.settings.looks_costly if self._change_costs_users else self.settings.looks
        return self._since_change in looks

    def _explores(self) -> bool:
        s = self.settings
        return self._since_change < (s.exploring_costly if self._change_costs_users else s.exploring)

    def _optimism(self, sd: np.ndarray) -> np.ndarray:
        """(K,) κ standard deviations of ln S, bounded."""
        s = self.settings
        if self._looks_further():
            return np.minimum(s.look_optimism * sd, s.look_largest_optimism)
        return np.minimum(s.optimism * sd, s.largest_optimism)

    def _optimism_overloaded(self) -> float:
        """κ where nothing seems stable. It grows slowly once much is known: most such loads are soon gone."""
        pace = self.settings.overload_pace if self._explores() else self.settings.overload_pace_later
        return min(1.0, pace * (self._overloaded - 1))

    def _safe(self, numbers: np.ndarray, sd: np.ndarray, rate_per_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Those that would be stable with slower service times too; the nearest to it where few would."""
        s = self.settings
        pessimism = s.look_pessimism if self._looks_further() else s.pessimism
        bears_per_s = self.prior.capacity_per_s[numbers] * np.exp(-pessimism * sd) * s.stable_share
        safe = np.flatnonzero(bears_per_s > rate_per_s)
        least = min(s.least_safe, math.ceil(s.least_safe_share * len(self.space)))
        if len(safe) < least:
            safe = np.argsort(-bears_per_s, kind="stable")[:least]
        return numbers[safe], sd[safe]

    def _largest_capacity(self, optimism: float) -> int:
        """What serves most if service times are so many standard deviations shorter than predicted."""
        capacity_per_s = self.prior.capacity_per_s
        numbers = self._change_costs.without_vain_delays(
            self._in_force, np.argsort(-capacity_per_s, kind="stable")
        )
        numbers = numbers[: self.settings.screened]
        hoped_per_s = capacity_per_s[numbers] * np.exp(optimism * self._standard_deviations(numbers))
        return int(numbers[np.argmax(hoped_per_s)])
