"""A tuner's side of the lease on a model: see `serving_adapter.lease`."""

from __future__ import annotations

from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as messages

from serving_adapter.lease import DURATION_PARAMETER, OWNER_PARAMETER, PROLONGS_PARAMETER


@dataclass(frozen=True)
class TunerLease:
    """Nobody else may take the model until `duration_s` after the last load that carried this."""

    owner: str
    """One line, told to whoever comes second; a tuner that comes back with it gets its own lease."""
    duration_s: float
    prolongs: bool = False
    """The owner has had it: it is refused to it where another has had it since."""

    def put_into(self, load: messages.RepositoryModelLoadRequest) -> None:
        """Has a load take or prolong the lease; one without a configuration does nothing else."""
        load.parameters[OWNER_PARAMETER].string_param = self.owner
        load.parameters[DURATION_PARAMETER].int64_param = round(1e3 * self.duration_s)
        if self.prolongs:
            load.parameters[PROLONGS_PARAMETER].bool_param = True
