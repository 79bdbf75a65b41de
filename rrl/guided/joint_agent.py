"""The default agent for several models that share one machine: one decision for all of them.

belief   of each model, and what they slow each other by      `rrl.belief.several_models.joint`
search   the promising part of the joint grid                 `joint_search`
rule     the same as for one model                            `acquisition`
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rrl.agent import Task
from rrl.belief.several_models.joint import JointBelief
from rrl.guided import first_choice
from rrl.guided.acquisition import Acquisition, Contenders
from rrl.guided.agent import Guided
from rrl.guided.change_costs import NONE_YET, ChangeCosts
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
            task.space, task.objective, task.cores, task.found, seed, settings.error_sd
        )
        changes = JointChangeCosts(task, self.belief, settings)
        self._changes = changes  # type: ignore[assignment]
        self._rule = _JointAcquisition(self.belief, changes, settings)  # type: ignore[arg-type]
        self._search = JointSearch(self.belief, changes.members, task.excluded)
        self._in_force = NONE_YET
        self._learned = 0
        self._kept_off: frozenset[int] = frozenset()
        self._refusals: Counter[int] = Counter()
        self._compared: Contenders | None = None
        self._thumb = self._rule_of_thumb(task.cores)
        self._next = self._first()

    def refused(self, number: int) -> None:
        """The target did not take this joint configuration. After twice it is not proposed again."""
        self._refusals[number] += 1
        if self._refusals[number] > 1:
            self._search.allowed[number] = False

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

    def _rule_of_thumb(self, cores: int | None) -> int | None:
        """The cores shared out evenly, an instance of one thread each."""
        joint = self.belief.joint
        each = None if cores is None else max(1, cores // len(joint.models))
        parts = [first_choice.rule_of_thumb(space, each) for space in joint.members.values()]
        if None in parts:
            return None
        return int(joint.joined(np.array([parts], dtype=int))[0])

    def _allows(self, numbers: np.ndarray) -> np.ndarray:
        return self._search.allowed[numbers] & ~np.isin(numbers, list(self._kept_off))

    def _candidates(self) -> np.ndarray:
        return self._search.promising(self._in_force, self.settings.contenders)


class JointChangeCosts:
    """What a change of several models costs their users: of each model, weighed by its requests."""

    def __init__(self, task: Task, belief: JointBelief, settings: GuidedSettings) -> None:
        found = by_model(task.found)
        self._belief = belief
        self.members = [
            ChangeCosts(
                Task(
                    member,
                    task.objective,
                    task.cores,
                    in_place=_own(task.in_place, model),
                    settles=task.settles,
                    found=found.get(model, {}),
                ),
                belief.members[k],
                settings,
            )
            for k, (model, member) in enumerate(belief.joint.members.items())
        ]

    @property
    def interval_s(self) -> float:
        """The length of the last interval."""
        return self.members[0].interval_s

    @interval_s.setter
    def interval_s(self, length_s: float) -> None:
        for member in self.members:
            member.interval_s = length_s

    def cost(self, in_force: int, numbers: np.ndarray, present_cost: float) -> np.ndarray:
        """(K,) what the change adds to the cost of one interval."""
        joint = self._belief.joint
        now, parts = joint.parts(np.array([in_force]))[0], joint.parts(numbers)
        each = [m.cost(int(now[k]), parts[:, k], present_cost) for k, m in enumerate(self.members)]
        return np.asarray(self._belief.shares @ np.stack(each))


class _JointAcquisition(Acquisition):
    """The rule over configurations that were searched for already."""

    def _promising(self, numbers: np.ndarray, in_force: int) -> np.ndarray:
        return numbers if in_force in numbers else np.append(numbers, in_force)


def _own(in_place: frozenset[str] | None, model: str) -> frozenset[str] | None:
    """The knobs of one model among those that change in place."""
    if in_place is None:
        return None
    return frozenset(name.removeprefix(f"{model}.") for name in in_place if name.startswith(f"{model}."))
