"""Sends calls over HTTP, and reads what comes back as gRPC would tell it: so one judge is enough."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from yarl import URL

from scripts.robustness.fuzz.calls import BOUND_S, RestCall
from scripts.robustness.fuzz.server.rest_grammar import DOCUMENT_BYTES
from serving_adapter.server.rest.call import STATUS_OF

CONNECTIONS = 8
DTYPES: dict[str, np.dtype] = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
CODE_OF = {status: code for code, status in STATUS_OF.items()} | {
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
}

Answer = tuple[grpc.StatusCode, str | None, bytes]


class RestSender:
    """A few connections to the door for HTTP; made within an event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS))

    async def answer(self, call: RestCall) -> Answer:
        """The code that gRPC has for the status, the sentence of a refusal, and the answer as a message."""
        patience_s = call.deadline_s or call.cancelled_after_s
        try:
            async with asyncio.timeout(BOUND_S if patience_s is None else patience_s):
                return await (self._sent(call) if call.verb else self._told(call.body))
        except TimeoutError:
            return grpc.StatusCode.DEADLINE_EXCEEDED, "the client gave up", b""

    async def close(self) -> None:
        await self._session.close()

    async def _sent(self, call: RestCall) -> Answer:
        url = URL(self._url + call.path, encoded=True)
        try:
            async with self._session.request(
                call.verb, url, data=call.body, headers=call.headers, allow_redirects=False
            ) as response:
                body = await response.read()
        except aiohttp.ClientError as error:
            return grpc.StatusCode.UNKNOWN, f"hung up: {type(error).__name__}", b""
        if response.status >= 300:
            code = CODE_OF.get(response.status, grpc.StatusCode.UNKNOWN)
            return code, "no body, as was asked" if call.verb == "HEAD" else _sentence(body), b""
        if not call.path.endswith("/infer"):
            return grpc.StatusCode.OK, None, b""
        try:
            return grpc.StatusCode.OK, None, answer_message(body, response.headers.get(DOCUMENT_BYTES))
        except (ValueError, KeyError, TypeError) as error:
            return grpc.StatusCode.UNKNOWN, f"the answer cannot be read: {error}", b""

    async def _told(self, data: bytes) -> Answer:
        """Says something on a connection of its own, and waits for the end of what comes back."""
        url = URL(self._url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            writer.write(data)
            writer.write_eof()
            first = await reader.read(12)
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            first = b""
        finally:
            writer.close()
        if first[9:10] == b"5":
            return grpc.StatusCode.INTERNAL, "a damaged head is a fault of the server", b""
        return grpc.StatusCode.OK, None, b""


def answer_message(body: bytes, document_bytes: str | None) -> bytes:
    """An answer of the REST form as a message's bytes; ValueError, KeyError or TypeError if it is none."""
    length = len(body) if document_bytes is None else int(document_bytes)
    document, behind = json.loads(body[:length]), body[length:]
    answer = pb.ModelInferResponse(
        model_name=document["model_name"],
        model_version=document["model_version"],
        id=document.get("id", ""),
    )
    for name, value in document.get("parameters", {}).items():
        answer.parameters[name].bool_param = value
    for output in document["outputs"]:
        answer.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        size_bytes = output.get("parameters", {}).get("binary_data_size")
        if size_bytes is None:
            raw = np.array(output["data"], DTYPES[output["datatype"]]).tobytes()
        else:
            raw, behind = behind[:size_bytes], behind[size_bytes:]
        answer.raw_output_contents.append(raw)
    if behind:
        raise ValueError(f"{len(behind)} bytes behind the document belong to no output")
    return bytes(answer.SerializeToString())


def _sentence(body: bytes) -> str:
    """What a refusal says; uvicorn's own are plain text."""
    try:
        told: Any = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
    return str(told["error"]) if isinstance(told, dict) and "error" in told else ""
