"""The Open Inference Protocol with Triton's statistics, model-configuration and model-repository extensions.

It only translates, between protobuf messages and `ServedModel` and between errors and gRPC status codes.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib import metadata
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer

from serving_adapter import model_configuration
from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.lease import DURATION_PARAMETER, OWNER_PARAMETER
from serving_adapter.lease import EXTENSION as LEASE_EXTENSION
from serving_adapter.recent_arrivals import EXTENSION
from serving_adapter.server.answers import InferenceFailed
from serving_adapter.server.configuration import Knobs
from serving_adapter.server.lease import LeaseHeld, ModelLease
from serving_adapter.server.redundancy.settings import ResilienceSettings, as_parameters, from_parameters
from serving_adapter.server.requests import EXACT, InputTensor
from serving_adapter.server.served_model import MODEL_VERSION, QueueFull, ServedModel
from serving_adapter.server.statistics import BatchTally, Tally
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.tensors import TensorSpec

try:
    SERVER_VERSION = metadata.version("rrl-tune")
except metadata.PackageNotFoundError:  # run from a checkout that was never installed
    SERVER_VERSION = "unknown"

CONTENTS_FIELD = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Where a tensor's values are if they are not raw; FP16 travels raw only."""


LOAD_PARAMETERS = ("config", OWNER_PARAMETER, DURATION_PARAMETER)


class Refused(Exception):
    """A request that gets a status code and one sentence instead of an answer."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def _invalid(sentence: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, sentence)


def _answers(
    method: Callable[[Any, Any, grpc.aio.ServicerContext], Awaitable[Message]],
) -> Callable[[Any, Any, grpc.aio.ServicerContext], Awaitable[Message]]:
    """Turns what a method raises into the status that the client sees."""

    @wraps(method)
    async def answer(self: Any, request: Any, context: grpc.aio.ServicerContext) -> Message:
        try:
            return await method(self, request, context)
        except Refused as refused:
            code, sentence = refused.code, str(refused)
        except QueueFull as full:
            code, sentence = grpc.StatusCode.RESOURCE_EXHAUSTED, str(full)
        except (InferenceFailed, ModelFailed) as failed:
            code, sentence = grpc.StatusCode.INTERNAL, str(failed)
        return await context.abort(code, sentence)

    return answer


class InferenceService(GRPCInferenceServiceServicer):
    """Answers every call of the protocol about the models of this server."""

    def __init__(
        self,
        models: dict[str, ServedModel],
        *,
        metrics_port: int,
        max_message_bytes: int,
        control_key: str | None = None,
    ) -> None:
        self._models = models
        self._control_key = control_key
        self._max_message_bytes = max_message_bytes
        self._defaults = {name: (model.knobs, model.resilience) for name, model in models.items()}
        self._leases = {name: ModelLease(name) for name in models}
        self._extensions = [
            "statistics",
            "model_configuration",
            "model_repository",
            f"metrics({metrics_port})",
            EXTENSION,
            LEASE_EXTENSION,
        ]

    # --- health and metadata -------------------------------------------------------------------------

    @_answers
    async def ServerLive(self, request: pb.ServerLiveRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ServerLiveResponse(live=True)

    @_answers
    async def ServerReady(self, request: pb.ServerReadyRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ServerReadyResponse(ready=all(model.ready for model in self._models.values()))

    @_answers
    async def ModelReady(self, request: pb.ModelReadyRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ModelReadyResponse(ready=self._known(request.name, request.version).ready)

    @_answers
    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        return pb.ServerMetadataResponse(
            name=model_configuration.SERVER_NAME, version=SERVER_VERSION, extensions=self._extensions
        )

    @_answers
    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        model = self._ready(request.name, request.version)
        tensor = pb.ModelMetadataResponse.TensorMetadata

        def described(specs: dict[str, TensorSpec]) -> list[Message]:
            return [tensor(name=s.name, datatype=s.datatype, shape=[-1, *s.shape]) for s in specs.values()]

        return pb.ModelMetadataResponse(
            name=model.name,
            versions=[MODEL_VERSION],
            platform="pytorch",
            inputs=described(model.inputs),
            outputs=described(model.outputs),
        )

    # --- inference -----------------------------------------------------------------------------------

    @_answers
    async def ModelInfer(self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext) -> Message:
        model = self._ready(request.model_name, request.model_version)
        size_bytes = request.ByteSize()
        if size_bytes > self._max_message_bytes:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the request has {size_bytes} bytes, the server takes at most {self._max_message_bytes}; "
                "send smaller requests or start the server with a larger --max-message-bytes",
            )
        wanted = [output.name for output in request.outputs]
        for name in wanted:
            if name not in model.outputs:
                raise _invalid(f"model {model.name!r} has no output {name!r}; it has {_names(model.outputs)}")
        outputs, origin = await model.infer(read_inputs(request, model), _accepts_approximation(request))
        response = pb.ModelInferResponse(model_name=model.name, model_version=MODEL_VERSION, id=request.id)
        if origin != EXACT:
            response.parameters[origin].bool_param = True
        for output in outputs:
            if not wanted or output.name in wanted:
                response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
                response.raw_output_contents.append(output.data)
        return response

    # --- statistics ----------------------------------------------------------------------------------

    @_answers
    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        models = [self._known(request.name, request.version)] if request.name else self._models.values()
        return pb.ModelStatisticsResponse(model_stats=[_statistics(model) for model in models])

    # --- configuration and control -------------------------------------------------------------------

    @_answers
    async def ModelConfig(self, request: pb.ModelConfigRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ModelConfigResponse(config=model_config(self._ready(request.name, request.version)))

    @_answers
    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        index = pb.RepositoryIndexResponse
        return index(
            models=[
                index.ModelIndex(
                    name=m.name, version=MODEL_VERSION, state="READY" if m.ready else "UNAVAILABLE"
                )
                for m in self._models.values()
                if m.ready or not request.ready
            ]
        )

    @_answers
    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        self._check_control_key(context)
        model = self._known(request.model_name)
        unknown = set(request.parameters) - set(LOAD_PARAMETERS)
        if unknown:
            known = ", ".join(LOAD_PARAMETERS)
            raise _invalid(f"load takes the parameters {known} only, got {', '.join(sorted(unknown))}")
        knobs, resilience = model.knobs, model.resilience
        if "config" in request.parameters:
            knobs, resilience = self._override(model, request.parameters["config"].string_param)
        self._take_lease(request)
        if "config" not in request.parameters and OWNER_PARAMETER in request.parameters:
            return pb.RepositoryModelLoadResponse()
        # It runs to its end even if the client does not wait: a change is in force whole or not at all.
        await asyncio.shield(asyncio.ensure_future(model.apply(knobs, resilience)))
        return pb.RepositoryModelLoadResponse()

    @_answers
    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        self._check_control_key(context)
        raise Refused(
            grpc.StatusCode.UNIMPLEMENTED,
            f"model {request.model_name!r} is served for as long as the server runs; end the server instead",
        )

    def _override(self, model: ServedModel, text: str) -> tuple[Knobs, ResilienceSettings]:
        """The knobs of an override; as in Triton it replaces all, so a knob left out gets its default."""
        try:
            override = model_configuration.parse(text)
            values = model_configuration.knob_values(override)
            model_configuration.check(values)
        except ValueError as error:
            raise _invalid(str(error)) from None
        present = model_config(model)
        for field in ("name", "input", "output", "backend", "platform"):
            if getattr(override, field) and getattr(override, field) != getattr(present, field):
                raise _invalid(
                    f"the override changes {field!r} of model {model.name!r}, which cannot change while it "
                    "is served; send the configuration that ModelConfig shows with only the knobs edited"
                )
        if values.get("inter_op_threads", 1) != 1 and not model.has_parallel_branches:
            raise _invalid(
                f"inter_op_threads={values['inter_op_threads']} has no effect on model {model.name!r}: "
                "it has no parallel branches; leave INTER_OP_THREAD_COUNT out"
            )
        default_knobs, default_resilience = self._defaults[model.name]
        knobs = Knobs(**vars(default_knobs) | values)
        parameters = {name: parameter.string_value for name, parameter in override.parameters.items()}
        try:
            resilience = from_parameters(parameters, default_resilience)
            model.check(knobs, resilience)
        except ValueError as error:
            raise _invalid(str(error)) from None
        return knobs, resilience

    def _take_lease(self, request: pb.RepositoryModelLoadRequest) -> None:
        """Takes or prolongs the lease that a load asks for; a load that asks for none is let through."""
        if not {OWNER_PARAMETER, DURATION_PARAMETER} & set(request.parameters):
            return
        owner = request.parameters[OWNER_PARAMETER].string_param
        duration_ms = request.parameters[DURATION_PARAMETER].int64_param
        try:
            self._leases[request.model_name].take(owner, duration_ms)
        except ValueError as error:
            raise _invalid(str(error)) from None
        except LeaseHeld as held:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(held)) from None

    def _check_control_key(self, context: grpc.aio.ServicerContext) -> None:
        if self._control_key is None:
            return
        given = dict(context.invocation_metadata() or ()).get(CONTROL_KEY_HEADER, "")
        if not hmac.compare_digest(str(given).encode(), self._control_key.encode()):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                "control of this server is locked; send its key (rrl-tune --control-key, or the metadata "
                f"{CONTROL_KEY_HEADER})",
            )

    def _known(self, name: str, version: str = "") -> ServedModel:
        if name not in self._models:
            sentence = f"unknown model {name!r}; this server has {_names(self._models)}"
            raise Refused(grpc.StatusCode.NOT_FOUND, sentence)
        if version not in ("", MODEL_VERSION):
            sentence = f"model {name!r} has version {MODEL_VERSION} only, not {version!r}"
            raise Refused(grpc.StatusCode.NOT_FOUND, sentence)
        return self._models[name]

    def _ready(self, name: str, version: str = "") -> ServedModel:
        model = self._known(name, version)
        if not model.ready:
            sentence = f"model {name!r} is starting or shutting down; try again"
            raise Refused(grpc.StatusCode.UNAVAILABLE, sentence)
        return model


def _accepts_approximation(request: pb.ModelInferRequest) -> bool:
    """A client refuses approximate answers with the request parameter `exact`."""
    if "exact" not in request.parameters:
        return True
    if request.parameters["exact"].WhichOneof("parameter_choice") != "bool_param":
        raise _invalid("the request parameter 'exact' must be a bool_param: true refuses approximate answers")
    return not request.parameters["exact"].bool_param


def _names(known: dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in known) or "none"


def read_inputs(request: pb.ModelInferRequest, model: ServedModel) -> list[InputTensor]:
    """The request's inputs in the model's order; raises Refused, in one sentence, where they do not fit."""
    given = {tensor.name: (i, tensor) for i, tensor in enumerate(request.inputs)}
    if given.keys() != model.inputs.keys() or len(given) != len(request.inputs):
        names = ", ".join(repr(tensor.name) for tensor in request.inputs) or "none"
        raise _invalid(f"model {model.name!r} takes the inputs {_names(model.inputs)}, got {names}")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise _invalid(f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs")
    inputs = []
    for spec in model.inputs.values():
        i, tensor = given[spec.name]
        shape = tuple(tensor.shape)
        _check_shape(spec, tensor.datatype, shape)
        data = raw[i] if raw else _contents(spec, tensor)
        expected_bytes = math.prod(shape) * spec.dtype.itemsize
        if len(data) != expected_bytes:
            raise _invalid(
                f"input {spec.name!r} of shape {list(shape)} and datatype {spec.datatype} needs "
                f"{expected_bytes} bytes, got {len(data)}"
            )
        inputs.append(InputTensor(data, shape))
    if len({tensor.shape[0] for tensor in inputs}) > 1:
        raise _invalid("all inputs of a request must have the same batch dimension (the first of the shape)")
    return inputs


def _check_shape(spec: TensorSpec, datatype: str, shape: tuple[int, ...]) -> None:
    if datatype != spec.datatype:
        raise _invalid(f"input {spec.name!r} must have datatype {spec.datatype}, got {datatype!r}")
    fits = len(shape) == 1 + len(spec.shape) and all(
        given >= 1 and wanted in (-1, given) for given, wanted in zip(shape[1:], spec.shape, strict=True)
    )
    most_rows = model_configuration.KNOBS["max_batch_size"].high
    if not fits or not 1 <= shape[0] <= most_rows:
        raise _invalid(
            f"input {spec.name!r} must have shape {[-1, *spec.shape]} (-1: any length from 1; the first is "
            f"the batch, at most {most_rows}), got {list(shape)}"
        )
    if spec.max_size is not None:
        longest = max((g for g, w in zip(shape[1:], spec.shape, strict=True) if w == -1), default=0)
        if longest > spec.max_size:
            raise _invalid(f"input {spec.name!r} may be at most {spec.max_size} long, got {longest}")


def _contents(spec: TensorSpec, tensor: Any) -> bytes:
    """A tensor sent as typed contents instead of raw bytes."""
    field = CONTENTS_FIELD.get(spec.datatype)
    if field is None:
        raise _invalid(f"input {spec.name!r} of datatype {spec.datatype} must be sent in raw_input_contents")
    values = np.asarray(getattr(tensor.contents, field))
    cast = values.astype(spec.dtype)
    if spec.dtype.kind in "iu" and not np.array_equal(cast, values):
        raise _invalid(f"input {spec.name!r} has values that do not fit {spec.datatype}")
    return cast.tobytes()


def model_config(model: ServedModel) -> mc.ModelConfig:
    """The model's configuration in Triton's form, its knobs in the fields that docs/architecture.md names."""

    def dtype(spec: TensorSpec) -> int:
        return mc.DataType.Value("TYPE_" + spec.datatype)

    on_cpu = model.device == "cpu"
    kind = mc.ModelInstanceGroup.KIND_CPU if on_cpu else mc.ModelInstanceGroup.KIND_GPU
    config = mc.ModelConfig(
        name=model.name,
        backend="pytorch",
        platform="pytorch",
        input=[mc.ModelInput(name=s.name, data_type=dtype(s), dims=s.shape) for s in model.inputs.values()],
        output=[
            mc.ModelOutput(name=s.name, data_type=dtype(s), dims=s.shape) for s in model.outputs.values()
        ],
        instance_group=[mc.ModelInstanceGroup(name=model.name, kind=kind)],
    )
    knobs = vars(model.knobs).copy()
    if not model.has_parallel_branches:
        del knobs["inter_op_threads"]
    for name, text in as_parameters(model.resilience).items():
        config.parameters[name].string_value = text
    return model_configuration.edited(config, knobs)


def _statistics(model: ServedModel) -> Message:
    statistics = model.statistics
    infer = pb.InferStatistics(
        success=_duration(statistics.success),
        fail=_duration(statistics.failure),
        queue=_duration(statistics.queue),
        **_compute(statistics.compute),
    )
    batches = [
        pb.InferBatchStatistics(batch_size=size, **_compute(tally))
        for size, tally in sorted(statistics.batches.items())
    ]
    return pb.ModelStatistics(
        name=model.name,
        version=MODEL_VERSION,
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
        inference_stats=infer,
        batch_stats=batches,
    )


def _duration(tally: Tally) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=tally.count, ns=tally.ns)


def _compute(tally: BatchTally) -> dict[str, pb.StatisticDuration]:
    return {name: _duration(value) for name, value in vars(tally).items()}
