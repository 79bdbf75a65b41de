"""A bare grpc.aio echo of ModelInfer: the peer of `server-overhead`. Prints its port."""

from __future__ import annotations

import asyncio

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)


class Echo(GRPCInferenceServiceServicer):
    async def ModelInfer(self, request: pb.ModelInferRequest, context: object) -> pb.ModelInferResponse:
        tensor = request.inputs[0]
        response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(request.raw_input_contents[0])
        return response


async def main() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    add_GRPCInferenceServiceServicer_to_server(Echo(), server)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
