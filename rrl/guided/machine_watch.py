"""Tells a change of the machine from noise, from hiccups, and from what is of one configuration alone (ours).

By how service times moved in an interval, over those before of the same configuration at a similar load
(`service_times.ServiceTimeModel.surprise`). Where changes of configuration cost users something, the
target is a server of processes on a machine that drifts: there one interval says little, and what was put in
force a moment ago says nothing of the machine.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum, auto
from statistics import median

from rrl.guided.settings import GuidedSettings

RECENT_MOVES = 1000  # intervals: what is common is told by a long time
USUAL_MOVE = 0.05  # standard deviation of ln of service times over those before, beside which noise counts


class Verdict(Enum):
    """What an interval says of the machine."""

    NOTHING = auto()  # what moved is noise, or the configuration's own
    DRIFT = auto()  # it moves a little, as it commonly does, where changes cost users something
    MAY_PASS = auto()  # a hiccup, perhaps, which is over by the next interval
    CHANGE = auto()


class MachineWatch:
    """Judges intervals in their order."""

    def __init__(self, settings: GuidedSettings) -> None:
        self._settings = settings
        self._judged = 0  # intervals in a row of what is in force
        self._suspected = 0.0  # ln of service times over those before, in what may have been a hiccup
        self._moves: deque[float] = deque(maxlen=RECENT_MOVES)  # |ln|; not what is of a configuration alone

    def put_in_force(self) -> None:
        """Another configuration was, and its first interval is to be judged.

        Where changes cost users something it does not tell of the machine until it is steady: what was known
        of it is of long ago, or of processes just started, so that new times are its own.
        """
        self._judged = 0

    def judged(self, log_factor: float, sd: float, costly: bool) -> Verdict:
        """Of an interval whose service times were exp(log_factor) times those before, sd of the logarithm.

        sd is infinite where nothing was known. `costly`: to leave what is in force may cost users something.
        """
        surprising = self._is_surprising(log_factor, sd, costly)
        tells = not costly or self._judged > self._settings.steady
        changed = surprising and tells
        if changed and costly and self._suspected * log_factor <= 0:
            self._suspected = log_factor
            return Verdict.MAY_PASS
        self._suspected = 0.0
        if math.isfinite(sd) and (tells or not surprising):
            self._moves.append(abs(log_factor))
        self._judged += 1
        if changed:
            return Verdict.CHANGE
        return Verdict.DRIFT if costly and tells and math.isfinite(sd) else Verdict.NOTHING

    def common_part(self, log_factor: float, sd: float) -> float:
        """What all configurations share of what service times moved by, noise (of this sd) apart."""
        return self._settings.common_share * log_factor / (1 + (sd / USUAL_MOVE) ** 2)

    def _is_surprising(self, log_factor: float, sd: float, costly: bool) -> bool:
        """True if service times moved by more than noise and more than they commonly do here."""
        if not math.isfinite(sd):
            return False
        common = median(self._moves) if self._moves else 0.0
        s = self._settings
        commonly = s.change_commonly_costly if costly else s.change_commonly
        return abs(log_factor) > max(s.change, s.change_sd * sd, commonly * common)
