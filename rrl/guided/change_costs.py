"""What a change of the configuration in force costs a target's users (ours: no paper has it).

Where every knob changes in place, as on our own server, it costs nothing. A stock Triton starts a process for
each new instance beside the load. Where another knob changes, it starts those of all instances anew.
"""

from __future__ import annotations

import numpy as np

from rrl.agent import Task
from rrl.guided.latency_prior import LatencyPrior
from rrl.guided.settings import GuidedSettings

NONE_YET = -1  # the number in force before the first interval
# A queue drains with at least this share of the load as capacity to spare, however little is predicted.
MIN_SPARE_SHARE = 0.05


class ChangeCosts:
    """The costs of going from the configuration in force to others, all given by their numbers."""

    def __init__(self, task: Task, prior: LatencyPrior, settings: GuidedSettings) -> None:
        self._space, self._prior, self._settings = task.space, prior, settings
        self._reloading = [task.space.names.index(name) for name in task.reloading]
        self._delay_reloads = "max_queue_delay_us" in task.reloading

    @property
    def exist(self) -> bool:
        """True if some change costs users something."""
        return bool(self._reloading)

    def exist_from(self, in_force: int) -> bool:
        """True if a change from `in_force` may; False before anything is in force."""
        return self.exist and in_force != NONE_YET

    def reloads(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """(K,) True where going there changes a knob that does not change in place. One must be in force."""
        changed = self._space.indices[numbers] != self._space.indices[in_force]
        result: np.ndarray = changed[:, self._reloading].any(axis=1)
        return result

    def processes_started(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """(K,) int: processes that going there starts beside the load; 0 where users do not feel that.

        They are those of new instances, or those of all instances where another knob changes too.
        """
        if not self.exist_from(in_force):
            return np.zeros(len(numbers), dtype=int)
        instances = self._prior.instances[numbers]
        to_come = np.maximum(0, instances - self._prior.instances[in_force])
        return np.where(self.reloads(in_force, numbers), instances, to_come)

    def waiting_ms(self, in_force: int, numbers: np.ndarray, rate_per_s: float) -> np.ndarray:
        """(K,) ms that requests of the next `spread_s` wait longer on average: the fluid queue of a change.

        Each process takes `process_start_s` to start. Meanwhile the present serves `beside_a_start` times
        slower, and what comes beyond that queues up. It waits for half of that time on average, and then
        half as long as the new configuration needs to drain the queue. What waits already is left out. So is
        that the first new instances may relieve the others.
        """
        if not self._prior.allowed[in_force]:  # Nobody knows its capacity.
            return np.zeros(len(numbers))
        s, bears_per_s = self._settings, self._prior.capacity_per_s
        lasts_s = s.process_start_s * self.processes_started(in_force, numbers)
        queued = np.maximum(0.0, rate_per_s - bears_per_s[in_force] / s.beside_a_start) * lasts_s
        drains_s = queued / np.maximum(bears_per_s[numbers] - rate_per_s, MIN_SPARE_SHARE * rate_per_s)
        result: np.ndarray = 1e3 * queued * (lasts_s + drains_s) / 2 / (rate_per_s * s.spread_s)
        return result

    def with_free(self, in_force: int, positions: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Positions in `numbers`, and behind them those of what is to be had without starting a process."""
        if not self.exist_from(in_force):
            return positions
        free = np.flatnonzero(self.processes_started(in_force, numbers) == 0)
        return np.concatenate([positions, free[~np.isin(free, positions)]])

    def without_vain_delays(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """Those numbers without changes of the delay that cost users something and bring nothing.

        A batch of one is full at once, whatever the delay.
        """
        if not self._delay_reloads or in_force == NONE_YET:
            return numbers
        batch, delay_s = self._prior.max_batch_size, self._prior.delay_s
        return numbers[(batch[numbers] > 1) | (delay_s[numbers] == delay_s[in_force])]
