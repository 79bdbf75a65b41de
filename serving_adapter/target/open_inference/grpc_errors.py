"""What a failed gRPC call says of a target, in one sentence."""

from __future__ import annotations

import grpc

from serving_adapter.target.error import (
    LeaseLost,
    LeaseTaken,
    LoadUnanswered,
    ModelAbsent,
    NotYetThere,
    TargetError,
    TargetLost,
)

_CODES_WHEN_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
# What these ask for is one model, by its name alone. So what is wrong with the question is that name.
_QUESTIONS_ABOUT_A_MODEL = ("ModelStatistics", "ModelConfig", "ModelMetadata", "ModelReady")
_CODES_WITHOUT_MODEL = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
# What gRPC itself says where something before the server ends a call, or answers it by HTTP.
_ENDED_ON_THE_WAY = ("RST_STREAM", "Stream removed", "http2 header with status")
_CODES_WITHOUT_KEY = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


def explain(
    error: grpc.RpcError, address: str, method: str, timeout_s: float, was_connected: bool
) -> TargetError:
    """The error of a failed call; lost only if the target had answered before."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.FAILED_PRECONDITION and "is leased to" in details:
        return LeaseTaken(f"{address}: {_one_line(details)}")
    if code is grpc.StatusCode.FAILED_PRECONDITION and "was leased to" in details:
        return LeaseLost(f"{address}: {_one_line(details)}")
    refusal = _refusal(code, details, address)
    if refusal:
        return TargetError(refusal)
    about_a_model = method in _QUESTIONS_ABOUT_A_MODEL and code in _CODES_WITHOUT_MODEL
    if was_connected and (about_a_model or "unknown model" in details):
        return ModelAbsent(f"the model is not loaded at {address} any more ({_one_line(details)})")
    if method == "RepositoryModelLoad" and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"{address} has not loaded the model within {timeout_s:g} s; its log may say why"
        return LoadUnanswered(text)
    is_lost = code in (*_CODES_WHEN_LOST, grpc.StatusCode.NOT_FOUND) or _ended_on_the_way(details)
    if was_connected and is_lost:
        return TargetLost(f"the target {address} is lost ({_reason(code, details, timeout_s)})")
    if code in _CODES_WHEN_LOST:
        return _unreachable(code, details, address, timeout_s)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return TargetError(
            f"{address} speaks gRPC but does not know {method}: it is no Open Inference Protocol server with "
            "Triton's extensions; give the gRPC port of rrl-serve or Triton"
        )
    log = "; the server's log says more" if code is grpc.StatusCode.INTERNAL else ""
    return TargetError(f"{address} refused {method}: {_one_line(details) or code.name}{log}")


def _ended_on_the_way(details: str) -> bool:
    return any(words in details for words in _ENDED_ON_THE_WAY)


def _refusal(code: grpc.StatusCode, details: str, address: str) -> str:
    """The server answers, and forbids."""
    if "explicit model load" in details:
        return (
            f"the Triton server at {address} does not let its models be reconfigured; start it with "
            "--model-control-mode=explicit --load-model=MODEL, or only observe it with --advise"
        )
    if code in _CODES_WITHOUT_KEY or "protocol is restricted" in details:
        return f"{address} wants a control key ({_one_line(details) or code.name}); give --control-key-file"
    return ""


def _unreachable(code: grpc.StatusCode, details: str, address: str, timeout_s: float) -> TargetError:
    lower = details.lower()
    if "failed parsing http/2" in lower or "http1" in lower:
        return TargetError(
            f"{address} answers, but not gRPC: it looks like an HTTP or metrics port; "
            "give the server's gRPC port (8500 by default for rrl-serve, 8001 for Triton)"
        )
    if "handshake" in lower:
        return TargetError(
            f"{address} makes no TLS connection ({_reason(code, details, timeout_s)}); check the certificates"
        )
    if "socket closed" in lower:  # Triton's HTTP and metrics ports do so
        return TargetError(
            f"{address} answers, but not gRPC: it may be an HTTP or metrics port (give the gRPC port, "
            "8500 by default for rrl-serve, 8001 for Triton) or speak TLS (give its certificates)"
        )
    return NotYetThere(
        f"the target {address} does not answer ({_reason(code, details, timeout_s)}); "
        "start the server, or give the address of its gRPC port"
    )


def _reason(code: grpc.StatusCode, details: str, timeout_s: float) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout_s:g} s"
    for known in (
        "Connection refused",
        "Domain name not found",
        "Network is unreachable",
        "No route to host",
    ):
        if known in details:
            return known[0].lower() + known[1:]
    return _one_line(details) or code.name


def _one_line(text: str) -> str:
    """The text as one line, without the traceback that a Python model appends."""
    return " ".join(text.partition("\n\nAt:")[0].split())[:300].rstrip(".; ")
