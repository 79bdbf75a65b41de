"""Several models of one server as one target: read together, changed together.

A knob is named with its model, `resnet.instances`. A change goes through the models one after the other.
Those that give up threads come first, so that there are at no time more threads than before or after. Where a
model's change fails, those that were changed before it are changed back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from serving_adapter.knob_limits import Configuration, Limits, by_model
from serving_adapter.target.error import LeaseTaken, NotPutBack, Overtaken, TargetError, TargetLost
from serving_adapter.target.lease import TunerLease
from serving_adapter.target.open_inference.joint_configuration import JointConfiguration, split
from serving_adapter.target.open_inference.open_inference_target import OpenInferenceTarget
from serving_adapter.target.reading import Reading, read_together
from serving_adapter.target.target import Applied

_THREADS = ("instances", "intra_op_threads", "inter_op_threads")
T = TypeVar("T")


class JointTarget(OpenInferenceTarget):
    """The models named. Each has a connection of its own, and a lease."""

    def __init__(
        self,
        address: str,
        models: Sequence[str],
        metrics_url: str | None = None,
        control_key: str | None = None,
        tls_ca: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        super().__init__(address, ",".join(models), metrics_url, control_key, tls_ca, timeout_s)
        self.members = {
            model: OpenInferenceTarget(address, model, metrics_url, control_key, tls_ca, timeout_s)
            for model in models
        }
        for member in self.members.values():
            member.calls = self.calls

    # --- connecting --------------------------------------------------------------------------------

    def connect(self, control: bool = True, counters: bool = True) -> None:
        try:
            for member in self.members.values():
                member.connect(control, counters)
        except TargetError:
            self.close()
            raise
        first = next(iter(self.members.values()))
        self.server, self.metrics_url = first.server, first.metrics_url
        self.cores, self.tells_gpus, self.started_s = first.cores, first.tells_gpus, first.started_s
        self.notes = list(dict.fromkeys(note for member in self.members.values() for note in member.notes))

    def close(self) -> None:
        for member in self.members.values():
            member.close()

    # --- what it is --------------------------------------------------------------------------------

    @property
    def is_rrl_serve(self) -> bool:
        return all(member.is_rrl_serve for member in self.members.values())

    @property
    def in_place_knobs(self) -> frozenset[str]:
        return frozenset(self._named(lambda member: dict.fromkeys(member.in_place_knobs)))

    def knobs(self) -> dict[str, Limits]:
        return self._named(lambda member: member.knobs())

    def configuration(self) -> dict[str, int]:
        return self._named(lambda member: member.configuration())

    def config_text(self, configuration: Configuration | None = None) -> str:
        return JointConfiguration(self.members).config_text(configuration)

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        return JointConfiguration(self.members).config_files(configuration)

    # --- what it is checked for --------------------------------------------------------------------

    def why_not_tunable(self) -> str:
        return next(filter(None, (member.why_not_tunable() for member in self.members.values())), "")

    def check_control(self) -> None:
        for member in self.members.values():
            member.check_control()

    def requests_hold_several_items(self) -> bool:
        return any(member.requests_hold_several_items() for member in self.members.values())

    def refuses_more_than_found(self, configuration: Configuration) -> str:
        parts = by_model(configuration)
        found = [m.refuses_more_than_found(parts[name]) for name, m in self.members.items() if name in parts]
        return "; ".join(filter(None, found))

    # --- keeping others off ------------------------------------------------------------------------

    def take_lease(self, lease: TunerLease) -> bool:
        taken = [member.take_lease(lease) for member in self.members.values()]
        return all(taken)

    def prolong_lease(self) -> None:
        for member in self.members.values():
            member.prolong_lease()

    def forget_lease(self) -> None:
        for member in self.members.values():
            member.forget_lease()

    # --- changing it -------------------------------------------------------------------------------

    def apply(self, configuration: Configuration) -> Applied:
        """Puts the knobs of all models in force, or of none.

        NotPutBack if a model's change failed, and then that of another could not be taken back. Overtaken if
        another client has set one of them meanwhile: that one stays.
        """
        parts = by_model(configuration)
        if unknown := sorted(parts.keys() - self.members.keys()):
            raise TargetError(f"{self.address} is tuned for {self.model}, not for {', '.join(unknown)}")
        before = {name: self.members[name].configuration() for name in parts}
        applied: dict[str, Applied] = {}
        for name in sorted(parts, key=lambda name: _more_threads(before[name], parts[name])):
            try:
                applied[name] = self.members[name].apply(parts[name])
            except (TargetLost, NotPutBack):
                raise
            except TargetError as error:
                changed = [each for each, found in applied.items() if found.changed]
                self._put_back({each: before[each] for each in reversed(changed)}, error)
                raise
        return Applied(
            in_place=all(each.in_place for each in applied.values()),
            cold_instances=sum(each.cold_instances for each in applied.values()),
            changed=any(each.changed for each in applied.values()),
            replaced={
                f"{name}.{knob}": value
                for name, each in applied.items()
                for knob, value in each.replaced.items()
            },
            models=applied,
        )

    def _put_back(self, before: Mapping[str, Configuration], error: TargetError) -> None:
        overtaken: list[str] = []
        for name, configuration in before.items():
            try:
                self.members[name].apply(configuration)
            except (TargetLost, LeaseTaken):
                raise
            except Overtaken as theirs:
                overtaken.append(str(theirs))
            except TargetError as another:
                raise NotPutBack(f"{error}, and {name} could not be put back: {another}") from None
        if overtaken:
            raise Overtaken(", and ".join((str(error), *overtaken))) from None

    def was_found_as(self, text: str) -> None:
        for name, part in split(text).items():
            if name in self.members:
                self.members[name].was_found_as(part)

    # --- reading it --------------------------------------------------------------------------------

    @property
    def glance_is_cheap(self) -> bool:
        return all(member.glance_is_cheap for member in self.members.values())

    def read(self) -> Reading:
        reading = read_together({name: member.read() for name, member in self.members.items()})
        self.started_s, self.cores = reading.start_time_s, reading.cores
        self.tells_gpus = reading.gpu_utilisation is not None
        return reading

    def glance(self) -> Reading:
        return read_together({name: member.glance() for name, member in self.members.items()})

    def _named(self, of: Callable[[OpenInferenceTarget], Mapping[str, T]]) -> dict[str, T]:
        """What each model tells of its knobs, named with the model."""
        return {
            f"{name}.{knob}": value
            for name, member in self.members.items()
            for knob, value in of(member).items()
        }


def _more_threads(before: Configuration, after: Configuration) -> int:
    """How many more threads a model puts to work after a change."""
    return _threads({**before, **after}) - _threads(before)


def _threads(configuration: Configuration) -> int:
    return math.prod(configuration.get(name, 1) for name in _THREADS)
