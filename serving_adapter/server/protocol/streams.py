"""ModelStreamInfer: many requests over one call, each answered when it is done, so maybe out of order.

A request that fails has its sentence in `error_message` beside its id, and the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.received import InferenceMessage
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.protocol.sent import bytes_field
from serving_adapter.server.protocol.served_call import ServedCall
from serving_adapter.server.protocol.stream_room import StreamRoom

Infer = Callable[[Any, Any], Awaitable[bytes]]

FINAL = pb.ModelInferResponse(parameters={"triton_final_response": pb.InferParameter(bool_param=True)})
"""What Triton adds to the last answer to a request of a stream, which here is the only one."""
FINAL_BYTES = FINAL.SerializeToString()  # appended to a message, they are fields of it
RESPONSE = pb.ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number
DRAINS = "the server is shutting down; open a stream to another"


class InferenceStreams:
    """Answers the streams of all clients, as many as there is room for."""

    def __init__(self, infer: Infer, room: StreamRoom) -> None:
        self._infer, self._room = infer, room

    def handler(self, read: Callable[[bytes], InferenceMessage | Refused]) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(self._serve, read, bytes)

    async def _serve(self, _: object, context: grpc.aio.ServicerContext) -> None:
        async with self._room.place(context):
            await _Stream(context, self._infer, self._room).run()


class _Stream:
    def __init__(self, context: grpc.aio.ServicerContext, infer: Infer, room: StreamRoom) -> None:
        self._context, self._infer, self._room = context, infer, room
        self._writing = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()
        self._one_ended = asyncio.Event()

    async def run(self) -> None:
        """Reads to the end of the stream, or until the server drains, and answers all that came."""
        try:
            while (message := await self._next()) not in (None, grpc.aio.EOF):
                task = asyncio.create_task(self._answer(message))
                self._answering.add(task)
                task.add_done_callback(self._ended)
                while len(self._answering) >= self._room.requests_of_each:
                    self._one_ended.clear()
                    await self._one_ended.wait()
            while self._answering:
                await asyncio.wait(self._answering)
            if message is None:
                await self._context.abort(grpc.StatusCode.UNAVAILABLE, DRAINS)
        finally:
            for task in self._answering:
                task.cancel()

    async def _next(self) -> Any:
        return await self._room.unless_draining(self._context.read())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._one_ended.set()

    async def _answer(self, message: InferenceMessage | Refused) -> None:
        call = StreamedCall(self._context)
        try:
            response = await self._response(message, call)
            async with self._writing:
                await self._context.write(response)
        except asyncio.CancelledError:
            raise
        except Exception:  # the client is gone: reading tells the same
            pass
        finally:
            call.end()

    async def _response(self, message: InferenceMessage | Refused, call: StreamedCall) -> bytes:
        try:
            return bytes_field(RESPONSE, await self._infer(message, call), FINAL_BYTES)
        except Refused as refused:
            number = "" if isinstance(message, Refused) else message.request.id
            refusal = pb.ModelStreamInferResponse(
                error_message=str(refused), infer_response=pb.ModelInferResponse(id=number)
            )
            return bytes(refusal.SerializeToString())


class StreamedCall(ServedCall):
    """One request of a stream."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        super().__init__()
        self._context = context

    def peer(self) -> str:
        return str(self._context.peer())

    def invocation_metadata(self) -> Any:
        return self._context.invocation_metadata()
