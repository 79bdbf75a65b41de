"""The rule of thumb: one instance a core, one thread each, small batches and no delay. It measures nothing.

An engineer sets this without a tuner, so a tuner must be worth more than it. The rule keeps every core busy
and none of them over-subscribed. A batch of up to 8 costs nothing where few requests wait.

| knob | the rule |
|---|---|
| `instances` | the cores of the target's machine; the most that the space has, where they are not known |
| `intra_op_threads`, `inter_op_threads` | 1 |
| `max_batch_size` | 8 |
| `max_queue_delay_us` | 0 |

A space need not have these values. The configuration proposed has the least sum of |ln((1 + v) / (1 + w))|
over the knobs, with v its value and w the rule's. Configurations that are excluded, or that the target
refused, are passed over. A knob that the rule does not name has the value found on the target.
"""

from __future__ import annotations

import numpy as np

from rrl.agent import Agent, Task, Transition, number_in_force
from rrl.guided.first_choice import RULE_OF_THUMB


class RuleOfThumb(Agent):
    """Proposes one configuration, always. It learns nothing from what it costs."""

    def __init__(self, task: Task) -> None:
        self.space = task.space
        rule = {
            "instances": task.cores or int(max(self._values("instances"), default=1)),
            **RULE_OF_THUMB,
        }
        self._rule = {name: value for name, value in rule.items() if name in self.space.names}
        if not self._rule:
            raise ValueError(
                f"the rule of thumb sets {', '.join(rule)}, none of which is among "
                f"{', '.join(self.space.names)}; add one (instances=1:4) or choose another agent"
            )
        self._passed_over = set(task.excluded)
        self._found: int | None = None  # the number of the configuration found

    def act(self, observation: np.ndarray) -> np.ndarray:
        found = number_in_force(observation, self.space) if self._found is None else self._found
        return self.space.action(self._nearest(found))

    def update(self, transition: Transition) -> None:
        """Takes the first configuration that it hears of for the one found."""
        if self._found is None:
            self._found = number_in_force(transition.observation, self.space)

    def recommended(self) -> int | None:
        """What it proposes; None before it heard of the configuration found."""
        return None if self._found is None else self._nearest(self._found)

    def explain(self) -> str:
        return "one instance a core, one thread each, batches of up to 8"

    def refused(self, number: int) -> None:
        self._passed_over.add(number)

    def _nearest(self, found: int) -> int:
        """The number of the configuration nearest to the rule; the one found where all are passed over."""
        wanted = {**self.space.configuration(found), **self._rule}
        logs = np.log1p(self.space.values) - np.log1p([wanted[name] for name in self.space.names])
        distances = np.abs(logs).sum(axis=1)
        distances[list(self._passed_over)] = np.inf
        nearest = int(np.argmin(distances))
        return nearest if np.isfinite(distances[nearest]) else found

    def _values(self, name: str) -> tuple[int, ...]:
        """The values of a knob; none where the space has no such knob."""
        return next((knob.values for knob in self.space.knobs if knob.name == name), ())
