"""What a front has to do with others: nothing, to lead them, or to follow the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from prometheus_client.registry import Collector
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.loads import ModelLoads
from serving_adapter.server.served_model import ServedModel


class Fronts(Protocol):
    """The others, as the process of a front sees them."""

    @property
    def collectors(self) -> Sequence[Collector]:
        """What the metrics page tells of them."""

    async def load(self, request: pb.RepositoryModelLoadRequest) -> None:
        """What a client asks for by a load is in force on all."""

    async def open(self) -> None:
        """Before the models start; ModelFailed, in one sentence, where it cannot serve with others."""

    async def serving(self, address: str, metrics_url: str) -> None:
        """This front serves, and may take part."""

    async def drain(self, drain_s: float) -> None:
        """This front takes nothing new. Those that it started have so long to finish as well."""

    async def close(self) -> None:
        """This front has finished; what is left of those that it started ends."""


class NoOthers:
    """The only front."""

    collectors = ()

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.load = ModelLoads(models).load

    async def open(self) -> None: ...

    async def serving(self, address: str, metrics_url: str) -> None: ...

    async def drain(self, drain_s: float) -> None: ...

    async def close(self) -> None: ...
