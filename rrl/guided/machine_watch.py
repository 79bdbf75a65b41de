"""Tells a change of the machine from noise, from hiccups, and from what is of one configuration alone (ours).

It judges by how service times moved in an interval: against those before of the same configuration at a
similar load (`service_times.ServiceTimeModel.surprise`).

Where changes of configuration cost users something, the target is a server of processes on a machine that
drifts. One interval says little there, and what was put in force a moment ago says nothing of the machine.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum, auto
from statistics import median

from rrl.guided.settings import GuidedSettings

# The common move is the median over so many intervals: only a long time tells it.
INTERVALS_OF_COMMON_MOVE = 1000
# Standard deviation of a usual move, as ln of service times over those before. Noise is weighed against it.
USUAL_MOVE_SD = 0.05


class MachineMove(Enum):
    """How an interval says that the machine has moved."""

    NOTHING = auto()  # What moved is noise, or the configuration's own.
    DRIFT = auto()  # It moved a little, as it commonly does where changes cost users something.
    MAY_PASS = auto()  # It moved far, perhaps in a hiccup that is over by the next interval.
    CHANGE = auto()  # It moved far, for good.


class MachineWatch:
    """Judges intervals in their order."""

    def __init__(self, settings: GuidedSettings) -> None:
        self._settings = settings
        self._judged = 0  # intervals in a row under what is in force
        self._suspected = 0.0  # ln of service times over those before, in what may have been a hiccup
        self._moves: deque[float] = deque(maxlen=INTERVALS_OF_COMMON_MOVE)  # |ln| of each

    def put_in_force(self) -> None:
        """Another configuration was put in force; its first interval comes next.

        Where changes cost users something, it tells nothing of the machine until it is steady. What was known
        of it is of long ago, or its processes have just started, so that new times are its own.
        """
        self._judged = 0

    def judged(self, log_factor: float, sd: float, costly: bool) -> MachineMove:
        """Judges an interval whose service times were exp(log_factor) times those before.

        `sd`: the standard deviation of the logarithm, infinite where nothing was known. `costly`: True if a
        change of what is in force may cost users something.
        """
        surprising = self._is_surprising(log_factor, sd, costly)
        tells = not costly or self._judged > self._settings.steady
        changed = surprising and tells
        if changed and costly and self._suspected * log_factor <= 0:
            self._suspected = log_factor
            return MachineMove.MAY_PASS
        self._suspected = 0.0
        if math.isfinite(sd) and (tells or not surprising):
            self._moves.append(abs(log_factor))
        self._judged += 1
        if changed:
            return MachineMove.CHANGE
        return MachineMove.DRIFT if costly and tells and math.isfinite(sd) else MachineMove.NOTHING

    def common_part(self, log_factor: float, sd: float) -> float:
        """ln of what all configurations share of a move, noise of this sd apart."""
        return self._settings.common_share * log_factor / (1 + (sd / USUAL_MOVE_SD) ** 2)

    def _is_surprising(self, log_factor: float, sd: float, costly: bool) -> bool:
        """True if service times moved by more than noise, and by more than they commonly do here."""
        if not math.isfinite(sd):
            return False
        common = median(self._moves) if self._moves else 0.0
        s = self._settings
        commonly = s.change_commonly_costly if costly else s.change_commonly
        return abs(log_factor) > max(s.change, s.change_sd * sd, commonly * common)
