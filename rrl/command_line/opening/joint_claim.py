"""The claim of a run on several models that it tunes together: one on each, as of a run of it alone."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from envs.target_claim import restore_point, restored
from rrl.joint import by_model, of_models
from rrl.tuning.listener import Change
from rrl.tuning.restore import RestorePoint, TargetClaim
from serving_adapter.target import Target
from serving_adapter.target.open_inference.joint_configuration import split
from serving_adapter.target.open_inference.joint_target import JointTarget


class JointClaim:
    """A `RestorePoint` for each model. A run of one of them alone finds what is to be put back of it."""

    def __init__(self, target: JointTarget) -> None:
        self._members = target.members
        self._points = {name: restore_point(member) for name, member in target.members.items()}

    def restored(self, console: Console) -> Change | None:
        """Puts back what killed runs had found of any of the models. Returns the changes as one."""
        changes = {
            name: change
            for name, point in self._points.items()
            if (change := restored(point, self._members[name], console)) is not None
        }
        if not changes:
            return None
        last = list(changes.values())[-1]
        before = of_models({name: change.before for name, change in changes.items()})
        after = of_models({name: change.after for name, change in changes.items()})
        return Change(last.at, before, after, last.decision, last.reason)

    def claim(self, found: Mapping[str, int], config_pbtxt: str = "", interval_s: float = 0.0) -> None:
        """Claims all of the models, or none."""
        parts, texts = by_model(found), split(config_pbtxt)
        try:
            for name, point in self._points.items():
                point.claim(parts.get(name, {}), texts.get(name, ""), interval_s)
        except BaseException:
            self.release()
            raise

    def safe(self, best: Mapping[str, int]) -> None:
        """After an interval: the best configuration that is known."""
        for name, part in by_model(best).items():
            self._points[name].safe(part)

    def found_anew(self, theirs: Mapping[str, int]) -> None:
        """Another client has set this, and the run goes on from it."""
        for name, part in by_model(theirs).items():
            self._points[name].found_anew(part)

    def set_by_others(self, tuned: Mapping[str, int]) -> bool:
        """True if no change of this run explains what is in force of one of the models."""
        return any(self._points[name].set_by_others(part) for name, part in by_model(tuned).items())

    def ending(self, in_force: Mapping[str, int]) -> None:
        """The last change is next."""
        for name, part in by_model(in_force).items():
            self._points[name].ending(part)

    def release(self) -> None:
        """At a clean end: all models are as they should be."""
        for point in self._points.values():
            point.release()


def claim_on(target: Target) -> RestorePoint | JointClaim:
    """The claim of a run on what it tunes."""
    return JointClaim(target) if isinstance(target, JointTarget) else restore_point(target)


def put_right(claim: TargetClaim | None, target: Target, console: Console) -> Change | None:
    """Puts back what a killed run had found, if there was one. TargetError where that is not possible."""
    if isinstance(claim, JointClaim):
        return claim.restored(console)
    return restored(claim, target, console) if isinstance(claim, RestorePoint) else None
