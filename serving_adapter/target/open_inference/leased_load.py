"""How a load of a model carries a tuner's lease on it."""

from __future__ import annotations

from tritonclient.grpc import service_pb2 as messages

from serving_adapter.lease import DURATION_PARAMETER, OWNER_PARAMETER, PROLONGS_PARAMETER
from serving_adapter.target.lease import TunerLease


def put_lease(load: messages.RepositoryModelLoadRequest, lease: TunerLease) -> None:
    """Has a load take or prolong the lease; one without a configuration does nothing else."""
    load.parameters[OWNER_PARAMETER].string_param = lease.owner
    load.parameters[DURATION_PARAMETER].int64_param = round(1e3 * lease.duration_s)
    if lease.prolongs:
        load.parameters[PROLONGS_PARAMETER].bool_param = True
