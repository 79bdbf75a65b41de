"""What a server tells about itself and its models, by calls of the Open Inference Protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.knob_limits import CLUSTER_KNOBS, KNOBS
from serving_adapter.lease import EXTENSION as LEASE_EXTENSION
from serving_adapter.model_configuration import SERVER_NAME
from serving_adapter.recent_arrivals import METHOD, Question, Told, pack_question, unpack_answer
from serving_adapter.target.error import NotYetThere, TargetError
from serving_adapter.target.lease import TunerLease
from serving_adapter.target.open_inference import checks, composition
from serving_adapter.target.open_inference.change import model_config
from serving_adapter.target.open_inference.connection import Connection
from serving_adapter.target.open_inference.leased_load import put_lease
from serving_adapter.target.open_inference.readings import parse_statistics
from serving_adapter.target.reading import Reading

ABSENT_MODEL = "no-model-but-a-question-whether-models-may-be-loaded"
CODES_FOR_ABSENT_MODELS = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
)


class InferenceServer:
    """The server at one address. TargetError, in one sentence, where it is not connected or refuses a call.

    What it told of itself stays known while it is not connected.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.name = ""  # with its version
        self.extensions: frozenset[str] = frozenset()
        self._connection: Connection | None = None
        self._lease: TunerLease | None = None

    @property
    def is_rrl_serve(self) -> bool:
        """True for this project's own server."""
        return self.name.startswith(SERVER_NAME)

    @property
    def in_place_knobs(self) -> frozenset[str]:
        """The knobs that change without a reload of the model."""
        return frozenset(KNOBS | CLUSTER_KNOBS) if self.is_rrl_serve else frozenset({"instances"})

    # --- the connection ----------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        return self._connection

    def connect(self, connection: Connection) -> None:
        """Uses the connection from now on. No call is made."""
        connection.lease = self._lease
        self._connection = connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def call(self, method: str, request: Any) -> Any:
        return self.connection.call(method, request)

    # --- the server --------------------------------------------------------------------------------

    def introduce(self) -> None:
        """Asks for the server's name, version and extensions."""
        metadata = self.call("ServerMetadata", messages.ServerMetadataRequest())
        self.name = f"{metadata.name} {metadata.version}".strip()
        self.extensions = frozenset(metadata.extensions)

    def check_extensions(self, control: bool, has_page: bool) -> None:
        """TargetError where it can be neither observed nor, with `control`, tuned."""
        described = f"{self.name or 'the server'} at {self.address}"
        checks.check_extensions(described, self.extensions, control, has_page)

    def check_control(self) -> None:
        """Asks for a model that is not there: how that fails tells whether loading is allowed at all.

        To load the model's own configuration again would change something. Triton loads a model anew if its
        files have changed, and the cache that Python leaves among them is such a change.
        """
        request = messages.RepositoryModelLoadRequest(model_name=ABSENT_MODEL)
        self.connection.fails_by("RepositoryModelLoad", request, CODES_FOR_ABSENT_MODELS)

    def take_lease(self, model: str, lease: TunerLease) -> bool:
        """Takes or prolongs the lease on a model, as every load does from now on; false if it has none."""
        if LEASE_EXTENSION not in self.extensions:
            return False
        had = self._lease
        if had is not None and had.owner == lease.owner:
            lease = replace(lease, prolongs=True)
        request = messages.RepositoryModelLoadRequest(model_name=model)
        put_lease(request, lease)
        self.call("RepositoryModelLoad", request)
        self._lease = replace(lease, prolongs=True) if lease.duration_s else None
        self.connection.lease = self._lease
        return True

    def prolong_lease(self, model: str) -> None:
        """Prolongs the lease that was taken, if one was."""
        if self._lease is not None:
            self.take_lease(model, self._lease)

    def forget_lease(self) -> None:
        """The next one that is taken begins anew, whoever has had it since."""
        self._lease = self.connection.lease = None

    # --- its models --------------------------------------------------------------------------------

    def choose_model(self, named: str | None) -> str:
        """The model of that name, or the only one that is ready if none is named."""
        if named is not None and self._is_ready(named):
            return named
        index = self.call("RepositoryIndex", messages.RepositoryIndexRequest()).models
        # MLServer writes State.READY.
        ready = sorted({entry.name for entry in index if entry.state.rpartition(".")[2] == "READY"})
        if named is not None:
            own = [entry for entry in index if entry.name == named]
            why = next((f" ({entry.reason})" for entry in own if entry.reason), "")
            state = f"is not ready{why}" if own else "is not there"
            may_come = not why and (own or not ready)
            raise (NotYetThere if may_come else TargetError)(
                f"model {named!r} {state} at {self.address}; ready: {', '.join(ready) or 'none'}"
            )
        if not ready:
            raise NotYetThere(f"no model is ready at {self.address}; load one")
        if len(ready) > 1:
            raise TargetError(f"{self.address} serves several models; name one of {', '.join(ready)}")
        return ready[0]

    def config_of(self, model: str) -> ModelConfig:
        """The configuration in force; nothing but its name where the server does not tell configurations."""
        if "model_configuration" not in self.extensions:
            return ModelConfig(name=model)
        return model_config(self.connection, model)

    def configs_besides(self, model: str) -> Iterator[ModelConfig]:
        """The configurations of the other models that are ready."""
        index = self.call("RepositoryIndex", messages.RepositoryIndexRequest(ready=True)).models
        for name in sorted({entry.name for entry in index} - {model}):
            with suppress(TargetError):  # it may go at any moment
                yield self.config_of(name)

    def ensembles_of(self, model: str) -> dict[str, int]:
        """The ensembles of which the model is a step, and the max_batch_size of each."""
        if not {"model_repository", "model_configuration"} <= self.extensions:
            return {}
        return composition.ensembles_of(model, self.configs_besides(model))

    def steps_of(self, model: str) -> list[str]:
        """The models that do an ensemble's work; none of another model."""
        return composition.steps_of(self.config_of(model), self.config_of, self.address)

    def reading_of(self, model: str) -> Reading:
        """The counters in the model's statistics."""
        at_s = time.monotonic()
        answer = self.call("ModelStatistics", messages.ModelStatisticsRequest(name=model))
        return parse_statistics(answer.model_stats, at_s)

    def arrivals_of(self, model: str, known: int) -> Told:
        """The arrivals at the model after the first `known`, as far as the server remembers them."""
        answer = self.connection.call_packed(METHOD, pack_question(Question(model, known)))
        try:
            return unpack_answer(answer)
        except ValueError as error:
            raise TargetError(f"{self.address} tells arrivals in another form: {error}") from None

    def items_beyond_requests(self, model: str) -> int:
        """How many more items than requests were answered so far.

        Answers from Triton's response cache are left out, as their items are not counted.
        """
        statistics = self.call("ModelStatistics", messages.ModelStatisticsRequest(name=model))
        items = sum(each.inference_count for each in statistics.model_stats)
        per_version = [each.inference_stats for each in statistics.model_stats]
        return items - sum(each.success.count - each.cache_hit.count for each in per_version)

    def _is_ready(self, model: str) -> bool:
        try:
            return self.call("ModelReady", messages.ModelReadyRequest(name=model)).ready
        except TargetError:
            return False
