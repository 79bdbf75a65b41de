"""A change of a model's configuration: loaded, waited for, verified; or the one before is put back."""

from __future__ import annotations

import time
from contextlib import suppress

from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.model_configuration import Configuration, as_json
from serving_adapter.target_checks import tunable
from serving_adapter.target_connection import Connection
from serving_adapter.target_error import LostInChange, NotPutBack, TargetError, TargetLost

TIMEOUT_S = 300.0  # a Triton that reloads a model takes seconds, a large one minutes
READY_POLL_S = 0.05


def put_in_force(
    connection: Connection, before: ModelConfig, wanted: ModelConfig, changes: Configuration
) -> None:
    """Returns when the model is ready with the `wanted` configuration, which `changes` tells from `before`.

    A change that fails raises TargetError, with the configuration from before in force: verified to its last
    field. NotPutBack if that is not so, LostInChange if the server does not answer any more.
    """
    try:
        _load(connection, wanted)
        _wait_until_ready(connection, wanted.name)
        _check_in_force(connection, wanted.name, changes)
    except TargetError as error:
        _check_lives(connection, changes)
        why_not = _put_back(connection, before)
        _check_lives(connection, changes)
        if why_not:
            raise NotPutBack(
                f"{error} (the previous configuration could not be put back: {why_not}; load "
                f"{before.name!r} yourself)"
            ) from None
        raise TargetError(f"{error} (the previous configuration is in force)") from None


def model_config(connection: Connection, model: str) -> ModelConfig:
    """The configuration in force."""
    return connection.call("ModelConfig", messages.ModelConfigRequest(name=model)).config


def _load(connection: Connection, config: ModelConfig) -> None:
    request = messages.RepositoryModelLoadRequest(model_name=config.name)
    request.parameters["config"].string_param = as_json(config)
    connection.call("RepositoryModelLoad", request, TIMEOUT_S)


def _wait_until_ready(connection: Connection, model: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not connection.call("ModelReady", messages.ModelReadyRequest(name=model)).ready:
        if time.monotonic() > end_s:
            raise TargetError(f"model {model!r} is not ready {TIMEOUT_S:g} s after it was configured")
        time.sleep(READY_POLL_S)


def _check_in_force(connection: Connection, model: str, changes: Configuration) -> None:
    in_force = tunable(model_config(connection, model))
    wrong = [f"{k}={in_force.get(k)} instead of {v}" for k, v in changes.items() if in_force.get(k) != v]
    if wrong:
        raise TargetError(f"{connection.address} accepted a configuration but reports {', '.join(wrong)}")


def _check_lives(connection: Connection, changes: Configuration) -> None:
    try:
        connection.call("ServerLive", messages.ServerLiveRequest())
    except TargetLost as lost:
        words = ", ".join(f"{name}={value}" for name, value in changes.items())
        raise LostInChange(f"{lost} in the middle of a change to {words}") from None


def _put_back(connection: Connection, before: ModelConfig) -> str:
    """Loads the configuration from before a change that failed; why it is not in force then, or ""."""
    with suppress(TargetError):  # where it is not taken, what is in force decides
        _load(connection, before)
    try:
        _wait_until_ready(connection, before.name)
        return "" if model_config(connection, before.name) == before else "the server reports another one"
    except TargetError as error:
        return str(error)
