"""A connection to a running cluster of Ray, or one sentence why there is none. Only calls import Ray.

Ray itself waits long where nothing answers, and tells of it in paragraphs. So its head is asked before
whether it is one, and of which version. Each question is bounded by `ANSWER_S`.
"""

from __future__ import annotations

import logging
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import grpc
import psutil

from serving_adapter.address import ServerAddress

INSTALL = "pip install 'ray[serve]==2.60.*'"
ANSWER_S = 10.0
IS_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
NODE_PROCESS = "raylet"
EXPECTED = "expected the address of its head, which `ray start --head` prints (usually HOST:6379)"


class ClusterError(ValueError):
    """One sentence: what was wrong with the cluster, what was expected, what to do."""


class ClusterNode(NamedTuple):
    """A node that is alive."""

    node_id: str  # Ray's, in hexadecimal digits
    host: str
    cpus: float


def check_installed(asked: str) -> None:
    """ClusterError where Ray is not installed; `asked` is what needs it."""
    if find_spec("ray") is None:
        raise ClusterError(f"{asked} needs Ray: {INSTALL}")


def connect(
    asked: str,
    text: str,
    environment: Mapping[str, str] | None = None,
    working_dir: str | None = None,
) -> None:
    """Connects this process to the cluster whose head is at HOST:PORT; ClusterError where that cannot be.

    `asked` is what needs the cluster, an option say. Whatever runs on its nodes has the `environment`, and
    the folder `working_dir` first on its path.
    """
    check_installed(asked)
    address = _address(asked, text)
    _check_head(address)
    _check_node_here(address)
    import ray

    runtime: dict[str, Any] = {"env_vars": dict(environment or {})}
    if working_dir is not None:
        runtime["working_dir"] = working_dir
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They speak to programmers about Ray's next version.
            ray.init(str(address), runtime_env=runtime, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, OSError) as error:
        ray.shutdown()
        raise ClusterError(_why_not(address, error)) from error
    except BaseException:
        ray.shutdown()
        raise


def disconnect() -> None:
    """Ends what this process still has running on the nodes; nothing where it is not connected."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def nodes() -> list[ClusterNode]:
    """Those that are alive now."""
    import ray

    return [
        ClusterNode(each["NodeID"], each["NodeManagerAddress"], each["Resources"].get("CPU", 0.0))
        for each in ray.nodes()
        if each["Alive"]
    ]


def _address(asked: str, text: str) -> ServerAddress:
    try:
        address = ServerAddress.parse(text)
    except ValueError as error:
        raise ClusterError(f"{asked} {error}; {EXPECTED}") from None
    if address.unix:
        raise ClusterError(f"{asked} {text} is no place of a Ray cluster: {EXPECTED}")
    return address


def head_answers(text: str) -> bool:
    """Whether the head of a cluster, which was there before, still is."""
    try:
        _version_at(ServerAddress.parse(text))
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return True


def _version_at(address: ServerAddress) -> str:
    """Of the Ray whose head is there; grpc.RpcError where none answers in time."""
    from ray.core.generated.gcs_service_pb2 import CheckAliveReply

    # Without a proxy, as Ray itself connects.
    with grpc.insecure_channel(str(address), [("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(IS_ALIVE, response_deserializer=CheckAliveReply.FromString)
        return str(ask(b"", timeout=ANSWER_S).ray_version)


def _check_head(address: ServerAddress) -> None:
    """ClusterError unless a head of this Ray's version answers in time."""
    import ray

    try:
        version = _version_at(address)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return  # Ray says what it wants.
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            raise ClusterError(f"nothing answers at {address} as a Ray cluster does: {EXPECTED}") from None
        raise ClusterError(f"what answers at {address} is no head of a Ray cluster: {EXPECTED}") from None
    if version and version != ray.__version__:
        raise ClusterError(_other_version(address, "Ray", version, ray.__version__))


def _check_node_here(address: ServerAddress) -> None:
    """Ray would look for a minute."""
    if not any(process.info["name"] == NODE_PROCESS for process in psutil.process_iter(["name"])):
        raise ClusterError(_no_node_here(address))


def _no_node_here(address: ServerAddress) -> str:
    return (
        f"this machine is no node of the Ray cluster at {address}, which a program must be on: "
        f"ray start --address={address}"
    )


def _why_not(address: ServerAddress, error: Exception) -> str:
    """The sentence about what `ray.init` raised."""
    said = " ".join(f"{error} {error.__cause__ or ''}".split())
    python = re.search(r"Version mismatch:.*?Python: (\S+)", said)
    if python is not None and python[1] != platform.python_version():
        return _other_version(address, "Python", python[1], platform.python_version())
    if "No node info found" in said:
        return _no_node_here(address)
    return f"the Ray cluster at {address} takes no program of this machine: {said}"


def _other_version(address: ServerAddress, what: str, theirs: str, ours: str) -> str:
    return (
        f"the cluster at {address} runs {what} {theirs} and this machine has {ours}: "
        f"both must be the same, so install {what} {theirs} here or start the cluster with {ours}"
    )
