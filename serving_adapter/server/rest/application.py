"""The routes of the protocol's REST form, as Triton and KServe have them.

| path below /v2 | method | what it is over gRPC |
|---|---|---|
| (none) | GET | ServerMetadata |
| health/live, health/ready | GET | ServerLive, ServerReady; the status is the answer |
| models/M, models/M/ready, models/M/config, models/M/stats | GET | ModelMetadata, ModelReady, ... |
| models/M/infer | POST | ModelInfer |
| models/stats | GET | ModelStatistics of all |
| repository/index | POST | RepositoryIndex |
| repository/models/M/load, .../unload | POST | RepositoryModelLoad, RepositoryModelUnload |

A model's paths may have versions/V behind its name. An error is a status and `{"error": "a sentence"}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.received import MAX_CONTROL_BYTES, InferenceMessage
from serving_adapter.server.protocol.refusals import as_refused
from serving_adapter.server.protocol.sent import LARGE_BYTES
from serving_adapter.server.protocol.servicer import InferenceService
from serving_adapter.server.rest import inference, parameters
from serving_adapter.server.rest.bodies import SMALL_BYTES, AnswerInParts, Bodies, packed_for
from serving_adapter.server.rest.call import STATUS_OF, Call, ClientLeft, HttpRefused
from serving_adapter.server.rest.documents import document

Handle = Callable[[Request, Call], Awaitable[Response]]

NOT_READY = 503


class RestService:
    """Handles what comes by the routes with the service that gRPC has."""

    def __init__(self, service: InferenceService, bodies: Bodies) -> None:
        self._service: Any = service  # whose methods answer with messages of many kinds
        self._bodies = bodies
        self._reading = asyncio.Lock()

    # --- health and metadata -----------------------------------------------------------------------

    async def live(self, request: Request, call: Call) -> Response:
        return Response()

    async def ready(self, request: Request, call: Call) -> Response:
        answer = await self._service.ServerReady(pb.ServerReadyRequest(), call)
        return Response(status_code=200 if answer.ready else NOT_READY)

    async def model_ready(self, request: Request, call: Call) -> Response:
        answer = await self._service.ModelReady(pb.ModelReadyRequest(**_model(request)), call)
        return Response(status_code=200 if answer.ready else NOT_READY)

    async def server(self, request: Request, call: Call) -> Response:
        return _told(await self._service.ServerMetadata(pb.ServerMetadataRequest(), call))

    async def model(self, request: Request, call: Call) -> Response:
        return _told(await self._service.ModelMetadata(pb.ModelMetadataRequest(**_model(request)), call))

    async def config(self, request: Request, call: Call) -> Response:
        answer = await self._service.ModelConfig(pb.ModelConfigRequest(**_model(request)), call)
        return _told(answer.config)

    async def statistics(self, request: Request, call: Call) -> Response:
        return _told(await self._service.ModelStatistics(pb.ModelStatisticsRequest(**_model(request)), call))

    # --- inference ---------------------------------------------------------------------------------

    async def infer(self, request: Request, call: Call) -> Response:
        async with self._bodies.read(request) as body:
            length = inference.document_bytes(body, request.headers.get(inference.HEADER_LENGTH))
            of = _model(request)
            read = partial(inference.read_request, body, length, of["name"], of.get("version", ""))
            message, form = read() if length <= SMALL_BYTES else await self._read_aside(read, call)
        del body, read  # While it waits, a request holds its tensors alone.
        response, outputs = await call.unless_left(self._service.inference.infer(message, call))
        answer, json_bytes = inference.answer(response, outputs, form)
        if len(answer) >= LARGE_BYTES:
            await asyncio.sleep(0)
        body, headers = await packed_for(request, answer)
        if json_bytes is None:
            return AnswerInParts(body, media_type="application/json", headers=headers)
        headers[inference.HEADER_LENGTH] = str(json_bytes)
        return AnswerInParts(body, media_type="application/octet-stream", headers=headers)

    async def _read_aside(
        self, read: Callable[[], tuple[InferenceMessage, inference.OutputForm]], call: Call
    ) -> tuple[InferenceMessage, inference.OutputForm]:
        """Lets others have the event loop in between. One at a time, as threads would only share a core.

        The wait is given up when the client goes away. What is being read is read to its end, as nothing
        stops a thread.
        """
        await call.unless_left(self._reading.acquire())
        try:
            return await asyncio.to_thread(read)
        finally:
            self._reading.release()

    # --- control -----------------------------------------------------------------------------------

    async def index(self, request: Request, call: Call) -> Response:
        given = await self._document(request)
        asked = pb.RepositoryIndexRequest(ready=given.get("ready") is True)
        answer = await self._service.RepositoryIndex(asked, call)
        return _json([document(model) for model in answer.models])

    async def load(self, request: Request, call: Call) -> Response:
        _check_of_no_page(request)
        asked = pb.RepositoryModelLoadRequest(model_name=request.path_params["name"])
        given = await self._document(request)
        parameters.put(given.get("parameters", {}), asked.parameters, "the load")
        await self._service.RepositoryModelLoad(asked, call)
        return Response()

    async def unload(self, request: Request, call: Call) -> Response:
        _check_of_no_page(request)
        asked = pb.RepositoryModelUnloadRequest(model_name=request.path_params["name"])
        await self._service.RepositoryModelUnload(asked, call)
        return Response()

    async def _document(self, request: Request) -> Mapping[str, Any]:
        """The JSON object of a call of control; empty where nothing was sent."""
        async with self._bodies.read(request, MAX_CONTROL_BYTES) as body:
            return inference.json_object(body or b"{}")

    # --- what the server does not have -------------------------------------------------------------

    async def without(self, request: Request, call: Call) -> Response:
        raise HttpRefused(
            501, "this server has no shared memory with clients, no tracing and no settings of logs"
        )


def application(service: InferenceService, bodies: Bodies) -> Starlette:
    """The ASGI application."""
    rest = RestService(service, bodies)
    of_models: list[tuple[str, str, Handle]] = [
        ("", "GET", rest.model),
        ("/ready", "GET", rest.model_ready),
        ("/config", "GET", rest.config),
        ("/stats", "GET", rest.statistics),
        ("/infer", "POST", rest.infer),
    ]
    routes = [
        Route("/v2/models/stats", Handled(rest.statistics), methods=["GET"]),
        *(
            Route(f"/v2/models/{{name}}{of}{path}", Handled(handle), methods=[method])
            for path, method, handle in of_models
            for of in ("", "/versions/{version}")
        ),
        Route("/v2", Handled(rest.server), methods=["GET"]),
        Route("/v2/health/live", Handled(rest.live), methods=["GET"]),
        Route("/v2/health/ready", Handled(rest.ready), methods=["GET"]),
        Route("/v2/repository/index", Handled(rest.index), methods=["POST"]),
        Route("/v2/repository/models/{name}/load", Handled(rest.load), methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", Handled(rest.unload), methods=["POST"]),
        *(
            Route(f"/v2/{path}", Handled(rest.without), methods=["GET", "POST"])
            for path in (
                "{kind}sharedmemory/{more:path}",
                "{models:path}trace/setting",
                "logging",
            )
        ),
    ]
    made = Starlette(routes=routes, exception_handlers={HTTPException: _unrouted})
    made.router.redirect_slashes = False  # A redirect would lead wherever the request's Host says.
    return made


class Handled:
    """A handler as an ASGI application: what it raises becomes a status and a sentence."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        call = Call(request)
        try:
            response = await self._answer(request, call)
            await response(scope, receive, send)
        except ClientLeft:
            pass
        finally:
            call.end()

    async def _answer(self, request: Request, call: Call) -> Response:
        try:
            return await self._handle(request, call)
        except HttpRefused as refused:
            return _refusal(refused.status, str(refused))
        except ClientLeft:
            raise
        except Exception as error:
            refusal = as_refused(error, "a request over HTTP")
            return _refusal(STATUS_OF[refusal.code], str(refusal))


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    sentence = f"this server has no {what[:200]}; its paths are those of /v2 of the Open Inference Protocol"
    return _refusal(error.status_code, sentence)


def _check_of_no_page(request: Request) -> None:
    """A browser sends `Origin` with what a web page has it post. No other client needs to."""
    if "origin" in request.headers:
        raise HttpRefused(
            403,
            "web pages may not control this server, and this request comes from one, as its header Origin "
            "says; send it from a program instead",
        )


def _refusal(status: int, sentence: str) -> Response:
    return _json({"error": sentence}, status)


def _told(message: Message) -> Response:
    return _json(document(message))


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _model(request: Request) -> dict[str, str]:
    """The name and the version in a path, as messages call them."""
    return {key: value for key, value in request.path_params.items() if key in ("name", "version")}
