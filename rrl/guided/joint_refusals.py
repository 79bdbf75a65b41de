"""What a target refused of a joint grid, and which model's part of it that was.

| refused twice was | then this is left out |
|---|---|
| a change of one model | what needs no less memory in that model, whatever the others have |
| that, but something of the kind was taken; or a change of several | what needs no less in every model |
| as above, and something of that kind was taken, too | it alone |

One model's part that is refused may be refused beside every value of the others. So the next change is one
that tells which model it was (`telling`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rrl.guided.candidates import needing_no_less
from rrl.joint import JointSpace


class JointRefusals:
    """Knows which configurations of a joint grid may be proposed."""

    def __init__(self, joint: JointSpace, excluded: frozenset[int]) -> None:
        self._joint = joint
        self._spaces = list(joint.members.values())
        self.allowed = np.ones(math.prod(joint.sizes), dtype=bool)
        """(size,) those that may be proposed."""
        self.allowed[list(excluded)] = False
        self._suspects = np.zeros(len(joint.sizes), dtype=bool)  # (M,) what the change refused last was of
        self._taken = 0  # how many configurations were taken when that was refused

    def leave_out(self, number: int, in_force: int, taken: set[int]) -> None:
        """The target refused twice to change from what is in force to this.

        `taken` are the configurations that it took before.
        """
        parts = self._parts(number)
        self._taken = len(taken)
        self._suspects = parts != self._parts(in_force) if in_force in taken else np.zeros_like(parts, bool)
        all_models = np.ones(len(parts), dtype=bool)
        for models in (self._suspects, all_models) if self._suspects.sum() == 1 else (all_models,):
            more = self._grid(
                [
                    needing_no_less(space, int(part)) if needs else np.ones(len(space), dtype=bool)
                    for space, part, needs in zip(self._spaces, parts, models, strict=True)
                ]
            )
            if not more[list(taken)].any():
                self.allowed &= ~more
                return
        self.allowed[number] = False

    def acquit(self) -> None:
        """Any change may be proposed: none that tells more of the refusal is worth it."""
        self._suspects = np.zeros_like(self._suspects)

    def telling(self, in_force: int, taken: set[int]) -> np.ndarray:
        """(size,) bool: the changes that tell whose part was refused; all that are allowed where none need.

        After a change of one model these are changes of the others. After one of several they are changes of
        one model. Once something else was taken, all are.
        """
        count = int(self._suspects.sum())
        if not count or len(taken) > self._taken:
            return self.allowed
        models = np.arange(len(self._suspects))
        changing = [models[~self._suspects]] if count == 1 else models[:, None]
        now = self._parts(in_force)
        telling = np.zeros_like(self.allowed)
        for free in changing:
            telling |= self._grid(
                [
                    np.ones(len(space), dtype=bool) if k in free else np.arange(len(space)) == now[k]
                    for k, space in enumerate(self._spaces)
                ]
            )
        return self.allowed & telling

    def _parts(self, number: int) -> np.ndarray:
        """(M,)"""
        return self._joint.parts(np.array([number]))[0]

    def _grid(self, of_models: Sequence[np.ndarray]) -> np.ndarray:
        """(size,) bool: those whose parts are all among these, given as bool of each model's own grid."""
        found = np.zeros(self._joint.sizes, dtype=bool)
        found[np.ix_(*of_models)] = True
        return found.ravel()
