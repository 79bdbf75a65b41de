"""The configuration that a target was found with, and what it means for every later one.

It outlasts a lost connection: the target is reconnected, and still has to be restored to it.
"""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.knob_limits import Configuration
from serving_adapter.model_configuration import as_json, edited, knob_values, parse_pbtxt
from serving_adapter.target.error import TargetError
from serving_adapter.target.open_inference.checks import tunable


class FoundConfiguration:
    """Nothing is known of it before `remember`."""

    def __init__(self) -> None:
        self._config: ModelConfig | None = None
        self._sizes_as_in: ModelConfig | None = None  # the preferred batch sizes that come back

    def remember(self, config: ModelConfig) -> None:
        """Keeps the first configuration it is given; TargetError if it cannot be read."""
        tunable(config)
        if self._config is None:
            self._config = self._sizes_as_in = config

    def set_to(self, pbtxt: str) -> None:
        """Replaces it by what an earlier run found, from the text of its `config.pbtxt`."""
        self._config = self._sizes_as_in = parse_pbtxt(pbtxt)

    @property
    def max_batch_size(self) -> int:
        """0 where there is no such knob."""
        return 0 if self._config is None else knob_values(self._config).get("max_batch_size", 0)

    def edited(self, config: ModelConfig, configuration: Configuration) -> ModelConfig:
        """A copy of `config` with these knobs set, in a form that a server takes.

        Preferred batch sizes above a smaller max_batch_size must go, and come back with a larger one. Those
        that somebody else has set meanwhile stay, and come back from then on.
        """
        base = ModelConfig()
        base.CopyFrom(config)
        found = config if self._config is None else self._config
        if _batches(config):
            if self._sizes_as_in is None or not _sizes_follow(config, self._sizes_as_in):
                self._sizes_as_in = config
            sizes = self._sizes_as_in
            base.dynamic_batching.preferred_batch_size[:] = sizes.dynamic_batching.preferred_batch_size
            base.max_batch_size = sizes.max_batch_size
            configuration = {"max_batch_size": config.max_batch_size, **configuration}
        try:
            wanted = edited(base, configuration, knob_values(found))
            as_json(wanted)
        except ValueError as error:
            raise TargetError(f"cannot configure model {config.name!r}: {error}") from None
        return wanted


def _batches(config: ModelConfig) -> bool:
    return config.HasField("dynamic_batching") and config.max_batch_size > 0


def _sizes_follow(config: ModelConfig, found: ModelConfig) -> bool:
    """True where the preferred batch sizes are those found, as far as they fit.

    Triton fills in the largest batch where none fits.
    """
    if not _batches(found):
        return False
    largest = {"max_batch_size": config.max_batch_size}
    fitting = list(edited(found, largest, found=largest).dynamic_batching.preferred_batch_size)
    return list(config.dynamic_batching.preferred_batch_size) in (fitting, fitting or [config.max_batch_size])
