"""The default agent for several models that share one machine: one decision for all of them.

| part | of | in |
|---|---|---|
| belief | each model, and what they slow each other by | `rrl.belief.several_models.joint` |
| refusals | the target | `joint_refusals` |
| search | the promising part of the joint grid | `joint_search` |
| rule | one model alone | `acquisition` |
"""

from __future__ import annotations

import numpy as np

from rrl.agent import Proposable, Task
from rrl.belief.several_models.joint import JointBelief
from rrl.guided import first_choice
from rrl.guided.acquisition import Acquisition, Contenders
from rrl.guided.agent import NONE_YET, Guided
from rrl.guided.joint_refusals import JointRefusals
from rrl.guided.joint_search import JointSearch
from rrl.guided.settings import GUIDED, GuidedSettings
from rrl.joint import by_model
from rrl.seeding import Seed


class JointGuided(Guided):
    """The agent of a joint grid (`rrl.joint`)."""

    def __init__(self, task: Task, settings: GuidedSettings = GUIDED, seed: Seed = 0) -> None:
        self.space, self.settings = task.space, settings
        self._objective = task.objective
        self.belief: JointBelief = JointBelief(  # type: ignore[assignment]
            task.space, task.objective, task.cores, task.found, seed
        )
        self._rule = _JointAcquisition(self.belief, task.settles, settings)
        self._search = JointSearch(self.belief)
        self._proposable = Proposable(task)
        self._refusals = JointRefusals(self.belief.joint, task.excluded)
        self._in_force = NONE_YET
        self._learned = 0
        self._taken: set[int] = set()
        self._compared: Contenders | None = None
        self._thumb = self._rule_of_thumb(task)
        self._next = self._first()

    def refused(self, number: int) -> None:
        """The target did not take this joint configuration. After twice it is not proposed again."""
        if self._proposable.refused(number):
            self._refusals.leave_out(number, self._in_force, self._taken)

    def _first(self) -> int:
        """The central configuration of each model alone; the fewest threads where the budget forbids it."""
        joint = self.belief.joint
        members = zip(self.belief.members, joint.members.values(), strict=True)
        parts = [first_choice.central(belief, space) for belief, space in members]
        number = int(joint.joined(np.array([parts]))[0])
        if self._allows(np.array([number]))[0]:
            return number
        least = [int(space.threads.argmin()) for space in joint.members.values()]
        return int(joint.joined(np.array([least]))[0])

    def _rule_of_thumb(self, task: Task) -> int | None:
        """The cores shared out evenly, an instance of one thread each."""
        joint, found = self.belief.joint, by_model(task.found)
        each = None if task.cores is None else max(1, task.cores // len(joint.models))
        parts = [
            first_choice.rule_of_thumb(space, each, found.get(model, {}))
            for model, space in joint.members.items()
        ]
        if None in parts:
            return None
        return int(joint.joined(np.array([parts], dtype=int))[0])

    def _allows(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray((self._refusals.allowed & self._proposable.admitted)[numbers])

    def _candidates(self) -> np.ndarray:
        telling = self._refusals.telling(self._in_force, self._taken)
        return self._search.promising(self._in_force, self.settings.contenders, telling)

    def _chosen(self) -> int:
        chosen = super()._chosen()
        if chosen == self._in_force:
            self._refusals.acquit()
        return chosen


class _JointAcquisition(Acquisition):
    """The rule over configurations that were searched for already."""

    def __init__(self, belief: JointBelief, settles: bool, settings: GuidedSettings) -> None:
        super().__init__(belief, settles, settings)  # type: ignore[arg-type]
        self._joint_belief = belief

    def _changed(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """(K,) the share of the requests whose model changes."""
        joint = self._joint_belief.joint
        changed = joint.parts(numbers) != joint.parts(np.array([in_force]))
        return np.asarray(changed @ self._joint_belief.shares)

    def _promising(self, numbers: np.ndarray, in_force: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = numbers if in_force in numbers else np.append(numbers, in_force)
        return numbers, self._joint_belief.standard_deviations(numbers, beside=in_force)
