"""What a load asks for is in force afterwards, and nothing else changes."""

from __future__ import annotations

import asyncio
import json

from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.protocol.loads import ModelLoads
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.workers.messages import ModelReference


def load_of(instances: int | None = None) -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name="noop")
    if instances is not None:
        config = {"instance_group": [{"count": instances}]}
        request.parameters["config"].string_param = json.dumps(config)
    return request


def test_a_load_without_a_configuration_undoes_no_change_that_is_under_way() -> None:
    async def scenario() -> None:
        reference, no_mode = ModelReference("noop"), ResilienceSettings()
        model = ServedModel("noop", reference, "cpu", Knobs(), Protection(), no_mode, RedundantModels())
        await model.start()
        loads = ModelLoads({"noop": model})
        await asyncio.gather(loads.load(load_of(instances=2)), loads.load(load_of()))
        assert model.knobs.instances == 2
        await model.close(grace_s=1.0)

    asyncio.run(scenario())
