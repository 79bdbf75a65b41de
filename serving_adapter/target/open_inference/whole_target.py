"""A model that others are parts of, as one target: its requests are watched, and its parts are changed.

| model | parts |
|---|---|
| an ensemble | its steps, which alone have knobs |
| a model that calls others (BLS) | itself and those that it calls |

The parts are changed together, as models of one server are (`joint_target`). A Triton loads an ensemble anew
by itself after its step (`change`). Nothing of a model that calls others is loaded anew with these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serving_adapter.knob_limits import Configuration
from serving_adapter.target.error import IsEnsemble, TargetError
from serving_adapter.target.open_inference.joint_target import JointTarget
from serving_adapter.target.open_inference.open_inference_target import OpenInferenceTarget
from serving_adapter.target.reading import Reading, read_as_whole
from serving_adapter.target.target import Applied


class WholeTarget(JointTarget):
    """The model named, and the parts that are tuned. It may be one of them."""

    def __init__(
        self,
        address: str,
        model: str,
        parts: Sequence[str],
        metrics_url: str | None = None,
        control_key: str | None = None,
        tls_ca: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        super().__init__(address, parts, metrics_url, control_key, tls_ca, timeout_s)
        self.model = model
        own = self.members.get(model)
        self._whole = own or OpenInferenceTarget(address, model, metrics_url, control_key, tls_ca, timeout_s)
        self._whole.calls = self.calls

    @property
    def whole_is_a_part(self) -> bool:
        """True for a model that calls others: it has knobs of its own."""
        return self.model in self.members

    def connect(self, control: bool = True, counters: bool = True) -> None:
        super().connect(control, counters)
        if self.whole_is_a_part:
            return
        try:
            self._whole.connect(control=False, counters=counters)
        except TargetError:
            self.close()
            raise
        self.notes = list(dict.fromkeys([*self.notes, *self._whole.notes]))

    def close(self) -> None:
        super().close()
        self._whole.close()

    def apply(self, configuration: Configuration) -> Applied:
        try:
            return super().apply(configuration)
        finally:
            self._whole.was_loaded_anew()

    def read(self) -> Reading:
        parts = super().read().models
        return read_as_whole(parts[self.model] if self.whole_is_a_part else self._whole.read(), parts)

    def glance(self) -> Reading:
        parts = super().glance().models
        return read_as_whole(parts[self.model] if self.whole_is_a_part else self._whole.glance(), parts)


def connected_with_parts(
    target: OpenInferenceTarget,
    called: Sequence[str],
    control: bool,
    make: Callable[[str, list[str]], WholeTarget],
) -> OpenInferenceTarget:
    """The target, connected; or what `make` makes of its model and the parts of it, where it has any.

    `called` are models that it calls. TargetError for a step that is not loaded.
    """
    try:
        parts = _parts(target, called, control)
        if parts == [target.model]:
            return target
    except BaseException:
        target.close()
        raise
    target.close()
    whole = make(target.model, parts)
    whole.connect(control)
    return whole


def _parts(target: OpenInferenceTarget, called: Sequence[str], control: bool) -> list[str]:
    """What is tuned of the model: its steps, or itself, and what it calls."""
    try:
        target.connect(control)
        steps = [] if control else target.steps()
    except IsEnsemble:
        target.connect(control=False, counters=False)
        steps = target.steps()
    return list(dict.fromkeys([*(steps or [target.model]), *called]))
