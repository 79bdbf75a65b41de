"""What a load asks for: another configuration of a model, a lease on it, or both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import grpc
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.configuration import Knobs
from serving_adapter.server.protocol.lease import LEASE_PARAMETERS, LeaseHeld, LeaseRequest, ModelLease
from serving_adapter.server.protocol.named_models import open_model
from serving_adapter.server.protocol.overrides import override
from serving_adapter.server.protocol.refusals import Refused, invalid
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel

log = logging.getLogger(__name__)

LOAD_PARAMETERS = ("config", *LEASE_PARAMETERS)

Load = Callable[[pb.RepositoryModelLoadRequest], Awaitable[None]]
"""Returns once what was asked for is in force."""

PutInForce = Callable[[ServedModel, Knobs, ResilienceSettings], Awaitable[None]]
"""Puts a checked configuration in force; ModelFailed where that cannot be, and the old one stays."""


class ModelLoads:
    """Checks loads, and does what they ask for."""

    def __init__(
        self, models: Mapping[str, ServedModel], put_in_force: PutInForce = ServedModel.apply
    ) -> None:
        self._models, self._put_in_force = models, put_in_force
        self._defaults = {name: (model.knobs, model.resilience) for name, model in models.items()}
        self._leases = {name: ModelLease(name, model.surroundings.now_ns) for name, model in models.items()}

    async def load(self, request: pb.RepositoryModelLoadRequest) -> None:
        """Refused, in one sentence, for what cannot be obeyed."""
        model = open_model(self._models, request.model_name)
        unknown = set(request.parameters) - set(LOAD_PARAMETERS)
        if unknown:
            known = ", ".join(LOAD_PARAMETERS)
            raise invalid(f"load takes the parameters {known} only, got {', '.join(sorted(unknown))}")
        has_config = "config" in request.parameters
        wanted = self._override(model, request.parameters["config"]) if has_config else None
        lease = self._taken_lease(request)
        if wanted is None:  # what is in force stays, and so does what is about to be
            return
        # It runs to its end even if the client does not wait: a change is in force whole or not at all.
        changing = asyncio.ensure_future(self._put_in_force(model, *wanted))
        changing.add_done_callback(_note_failed_change)
        if lease is not None:
            lease.last_until(changing)
        await asyncio.shield(changing)

    def _override(
        self, model: ServedModel, parameter: pb.ModelRepositoryParameter
    ) -> tuple[Knobs, ResilienceSettings]:
        if parameter.WhichOneof("parameter_choice") != "string_param":
            raise invalid("the parameter 'config' must be a string_param: a ModelConfig in JSON")
        try:
            return override(model, parameter.string_param, *self._defaults[model.name])
        except ValueError as error:
            raise invalid(str(error)) from None

    def _taken_lease(self, request: pb.RepositoryModelLoadRequest) -> ModelLease | None:
        """Takes or prolongs the lease that a load asks for; a load that asks for none is let through."""
        try:
            asked = LeaseRequest.of(request)
            if asked is None:
                return None
            lease = self._leases[request.model_name]
            lease.take(*asked)
        except ValueError as error:
            raise invalid(str(error)) from None
        except LeaseHeld as held:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(held)) from None
        return lease


def _note_failed_change(changing: asyncio.Future[None]) -> None:
    """Its client hears why, unless it has gone away meanwhile."""
    if not changing.cancelled() and (error := changing.exception()) is not None:
        log.warning("a change of the configuration failed: %s", error)
