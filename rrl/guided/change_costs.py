"""What a change of the configuration in force costs a target's users (ours: no paper has it).

Any change costs a share of an interval. Where every knob changes in place, as on our own server, that is all.
A stock Triton starts a process for each new instance beside the load. Where another knob changes, it starts
those of all instances anew.
"""

from __future__ import annotations

import numpy as np

from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guided.settings import GuidedSettings

# Batches take so many times as long beside a start, measured of a stock Triton on 2 cores.
BESIDE_A_START = 1.8
NONE_YET = -1  # the number in force before the first interval
# A queue drains with at least this share of the load as capacity to spare, however little is predicted.
MIN_SPARE_SHARE = 0.05


class ChangeCosts:
    """The costs of going from the configuration in force to others, all given by their numbers."""

    def __init__(self, task: Task, belief: Belief, settings: GuidedSettings) -> None:
        self._space, self._belief, self._settings = task.space, belief, settings
        self._reloading = [task.space.names.index(name) for name in task.reloading]
        self._settles = task.settles
        self._ms = task.objective.unit == "ms"
        self.interval_s = 1.0  # the length of the last interval

    @property
    def exist(self) -> bool:
        """True if some change costs users something."""
        return bool(self._reloading)

    def processes_started(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """(K,) int: processes that going there starts beside the load; 0 where users do not feel that.

        They are those of new instances, or those of all instances where another knob changes too.
        """
        if not self.exist or in_force == NONE_YET:
            return np.zeros(len(numbers), dtype=int)
        of_all = self._belief.replay.instances
        changed = self._space.indices[numbers] != self._space.indices[in_force]
        reloads = changed[:, self._reloading].any(axis=1)
        return np.where(reloads, of_all[numbers], np.maximum(0, of_all[numbers] - of_all[in_force]))

    def cost(self, in_force: int, numbers: np.ndarray, present_cost: float) -> np.ndarray:
        """(K,) what the change adds to the cost of one interval: slower batches meanwhile, and a queue."""
        s = self._settings
        share = s.settling_share if self._settles else s.change_share
        any_change = share * present_cost * (numbers != in_force)
        started = self.processes_started(in_force, numbers)
        if not started.any():
            return any_change
        lasts = s.process_start_s * started / self.interval_s  # intervals
        slower = (BESIDE_A_START - 1) * lasts * present_cost
        return any_change + slower + (self._queue_ms(in_force, numbers, started) if self._ms else 0.0)

    def _queue_ms(self, in_force: int, numbers: np.ndarray, started: np.ndarray) -> np.ndarray:
        """(K,) ms that requests of one interval wait longer on average: the fluid queue of a change.

        Each process takes `process_start_s` to start. Meanwhile the present serves `BESIDE_A_START` times
        slower, and what comes beyond that queues up. It waits for half of that time on average, and then
        half as long as the new configuration needs to drain the queue.
        """
        s, bears_per_s = self._settings, self._belief.replay.capacity_per_s
        rate_per_s = self._belief.forecast.present_rate_per_s
        if not self._belief.replay.allowed[in_force]:  # Nobody knows its capacity.
            return np.zeros(len(numbers))
        lasts_s = s.process_start_s * started
        queued = np.maximum(0.0, rate_per_s - bears_per_s[in_force] / BESIDE_A_START) * lasts_s
        drains_s = queued / np.maximum(bears_per_s[numbers] - rate_per_s, MIN_SPARE_SHARE * rate_per_s)
        return np.asarray(1e3 * queued * (lasts_s + drains_s) / 2 / (rate_per_s * self.interval_s))

    def without_vain_delays(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """Those numbers without changes of the delay that bring nothing.

        A batch of one is full at once, whatever the delay.
        """
        if in_force == NONE_YET:
            return numbers
        batch, delay_s = self._belief.replay.max_batch_size, self._belief.replay.delay_s
        return numbers[(batch[numbers] > 1) | (delay_s[numbers] == delay_s[in_force])]
