"""A change of a model's configuration: loaded, waited for, verified; or the one before is put back.

A process that starts keeps a core busy for seconds. Several that start at once, beside a load near the
capacity, make a queue of seconds (`scripts/bench triton-change-cost`). So instances come in turns (`stages`).

Triton's new instance takes requests off the queue before it is done with its own start. So a load that adds
instances in place returns once the queue is empty, which it never is where requests come faster than they are
answered. A reload has a queue of its own: where the queue is long, all instances come by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.knob_limits import Configuration, in_words
from serving_adapter.model_configuration import as_json, edited, sized_as_in
from serving_adapter.target.error import (
    LeaseTaken,
    LoadUnanswered,
    LostInChange,
    ModelAbsent,
    NotPutBack,
    Overtaken,
    TargetError,
    TargetLost,
)
from serving_adapter.target.open_inference.checks import tunable
from serving_adapter.target.open_inference.connection import Connection
from serving_adapter.target.open_inference.leased_load import put_lease

TIMEOUT_S = 300.0  # a Triton that reloads a model takes seconds, a large one minutes
READY_POLL_S = 0.05
ENSEMBLE_S = 2.0  # Triton loads an ensemble anew at once with its step


class _TakenOtherwise(TargetError):
    """The server made something else of the knobs that it was to change."""


def stages(
    before: ModelConfig,
    wanted: ModelConfig,
    in_place: bool,
    at_once: int | None,
    queue_is_long: bool = False,
) -> list[ModelConfig]:
    """What to load one after the other, so that no more than `at_once` instances come together.

    A new load starts all of its instances together. So it is made with as many as served before, and further
    ones come in place after it. With `at_once` None, all come together. So they do where the queue is long,
    and by a reload, as an addition in place might never end. Triton reloads a model whose delay is another
    one, so a change of the instances alone has that, too, and then the wanted one.
    """
    last = wanted.instance_group[0].count if wanted.instance_group else 0
    present = before.instance_group[0].count if before.instance_group else 0
    if last <= present or (queue_is_long and not in_place):
        return [wanted]
    if queue_is_long and wanted.HasField("dynamic_batching"):
        return [_with_another_delay(wanted), wanted]
    if at_once is None:
        return [wanted]
    first = present + at_once if in_place else max(present, at_once)
    counts = [*range(first, last, at_once), last]
    return [_with_count(wanted, count) for count in counts]


def put_in_force(
    connection: Connection,
    before: ModelConfig,
    to_load: Sequence[ModelConfig],
    changes: Configuration,
    ensembles: Sequence[str] = (),
) -> None:
    """Returns when the model is ready with the last of these, which `changes` tells from `before`.

    The ensembles of which it is a step are ready then if they were before: each is loaded after it where
    Triton has not.
    A change that fails raises TargetError. Then the configuration from before is in force, verified to its
    last field. NotPutBack if it is not; LostInChange if the server does not answer any more. Overtaken where
    another client has loaded another one meanwhile: that one stays.
    """
    ensembles = [name for name in ensembles if _is_ready(connection, name)]
    try:
        for config in to_load:
            _load(connection, config)
            _wait_until_ready(connection, config.name)
            _ready_again(connection, ensembles)
            _check_in_force(connection, config, changes)
    except LeaseTaken:  # refused before anything was changed
        raise
    except ModelAbsent:  # Whoever unloaded it while it was changed wants it so.
        raise
    except TargetError as error:
        _check_lives(connection, changes)
        if not isinstance(error, _TakenOtherwise):
            _check_not_overtaken(connection, before, to_load)
        may_still_come = isinstance(error, LoadUnanswered | TargetLost)
        why_not = _put_back(connection, before, ensembles, may_still_come)
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


def _with_count(config: ModelConfig, count: int) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    copy.instance_group[0].count = count
    return copy


def _with_another_delay(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    copy.dynamic_batching.max_queue_delay_microseconds += 1
    return copy


def _load(connection: Connection, config: ModelConfig) -> None:
    request = messages.RepositoryModelLoadRequest(model_name=config.name)
    request.parameters["config"].string_param = as_json(config)
    if connection.lease is not None:
        put_lease(request, connection.lease)
    connection.call("RepositoryModelLoad", request, TIMEOUT_S)


def _is_ready(connection: Connection, model: str) -> bool:
    return bool(connection.call("ModelReady", messages.ModelReadyRequest(name=model)).ready)


def _wait_until_ready(connection: Connection, model: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not _is_ready(connection, model):
        _check_not_unloaded(connection, model)
        if time.monotonic() > end_s:
            raise TargetError(f"model {model!r} is not ready {TIMEOUT_S:g} s after it was configured")
        time.sleep(READY_POLL_S)


def _ready_again(connection: Connection, ensembles: Sequence[str]) -> None:
    """Waits until Triton has loaded these anew by itself; loads those that it has not."""
    for name in ensembles:
        end_s = time.monotonic() + ENSEMBLE_S
        while not _is_ready(connection, name):
            if time.monotonic() > end_s:
                request = messages.RepositoryModelLoadRequest(model_name=name)
                connection.call("RepositoryModelLoad", request, TIMEOUT_S)
                _wait_until_ready(connection, name)
                break
            time.sleep(READY_POLL_S)


def _check_not_unloaded(connection: Connection, model: str) -> None:
    """A model that starts takes its time; one that somebody unloaded meanwhile does not come."""
    index = connection.call("RepositoryIndex", messages.RepositoryIndexRequest()).models
    versions = [entry for entry in index if entry.name == model]
    if all(entry.state == "UNLOADING" or entry.reason == "unloaded" for entry in versions):
        raise ModelAbsent(f"model {model!r} at {connection.address} was unloaded while it was configured")


def _check_in_force(connection: Connection, loaded: ModelConfig, changes: Configuration) -> None:
    """What differs in the knobs that were changed, and in nothing else, is the server's own answer."""
    in_force, loaded_values = model_config(connection, loaded.name), tunable(loaded)
    has, wants = tunable(in_force), {name: loaded_values[name] for name in changes}
    wrong = [f"{k}={has.get(k)} instead of {value}" for k, value in wants.items() if has.get(k) != value]
    if wrong:
        is_own_answer = _is(edited(in_force, wants, found=wants), loaded)
        kind = _TakenOtherwise if is_own_answer else TargetError
        raise kind(f"{connection.address} accepted a configuration but reports {', '.join(wrong)}")


def _check_not_overtaken(connection: Connection, before: ModelConfig, to_load: Sequence[ModelConfig]) -> None:
    """What is in force and was neither there before nor loaded is another client's."""
    in_force = _told_in_force(connection, before.name)
    if in_force is None or _is(in_force, before):
        return
    has = tunable(in_force)
    if has not in [tunable(config) for config in to_load]:
        raise Overtaken(
            f"another client set {in_words(has)} at {connection.address} while {before.name!r} was "
            "configured, which stays in force"
        )


def _is(in_force: ModelConfig, config: ModelConfig) -> bool:
    """Whether this one is in force, whatever the server has learned of its outputs' sizes meanwhile."""
    return bool(in_force == sized_as_in(in_force, config))


def _told_in_force(connection: Connection, model: str) -> ModelConfig | None:
    """None where a model that is not ready tells none."""
    with suppress(TargetError):
        return model_config(connection, model)
    return None


def _check_lives(connection: Connection, changes: Configuration) -> None:
    try:
        connection.call("ServerLive", messages.ServerLiveRequest())
    except TargetLost as lost:
        raise LostInChange(f"{lost} in the middle of a change to {in_words(changes)}") from None


def _put_back(
    connection: Connection, before: ModelConfig, ensembles: Sequence[str], may_still_come: bool
) -> str:
    """Loads the configuration from before a failed change. Returns why it is not in force, or "".

    Where it is in force it is not loaded, as that would undo what other clients load meanwhile. It is where
    what was loaded last `may_still_come`.
    """
    in_force = None if may_still_come else _told_in_force(connection, before.name)
    if in_force is not None and _is(in_force, before):
        with suppress(TargetError):
            if _is_ready(connection, before.name):
                _ready_again(connection, ensembles)
                return ""
    with suppress(TargetError):  # where it is not taken, what is in force decides
        _load(connection, before)
    try:
        _wait_until_ready(connection, before.name)
        _ready_again(connection, ensembles)
        is_back = _is(model_config(connection, before.name), before)
        return "" if is_back else "the server reports another one"
    except ModelAbsent:
        raise
    except TargetError as error:
        return str(error)
