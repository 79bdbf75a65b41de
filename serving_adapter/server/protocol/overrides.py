"""A model's configuration in Triton's form, and the override of it that a client loads.

An override sets knobs. Whatever else it sets must be what the model is served with already. Everything else
is refused by the field's name: two instance groups, another kind of device, a queue policy, preferred batch
sizes, a batcher of sequences, a misspelt parameter. No list of fields says so, only the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableSequence
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as mc

from serving_adapter import model_configuration
from serving_adapter.knob_limits import CLUSTER_KNOBS, KNOBS, KNOBS_ON_CLUSTER, check
from serving_adapter.model_configuration import LIMIT_OF_NODES, LIMIT_OF_ROWS
from serving_adapter.server import placement
from serving_adapter.server.configuration import Knobs
from serving_adapter.server.redundancy.settings import (
    PREFIX,
    ResilienceSettings,
    as_parameters,
    from_parameters,
)
from serving_adapter.server.served_model import ServedModel
from serving_adapter.tensors import TensorSpec

MAX_TEXT_BYTES = 64 << 10
LIMIT_OF_SIZE = "LIMIT_SIZE_"  # and the input's name: of its dimensions that vary


def model_config(model: ServedModel) -> mc.ModelConfig:
    """The model's configuration in Triton's form, its knobs in the fields that docs/architecture.md names."""

    def dtype(spec: TensorSpec) -> int:
        return mc.DataType.Value(spec.codec.config_name)

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
    knobs = {name: value for name, value in vars(model.knobs).items() if name in KNOBS}
    if model.surroundings.on_cluster:
        for name, text in placement.as_parameters(model.knobs.placement).items():
            config.parameters[name].string_value = text
    if not model.has_parallel_branches:
        del knobs["inter_op_threads"]
    for name, text in as_parameters(model.resilience).items():
        config.parameters[name].string_value = text
    for name, limit in _limits(model).items():
        config.parameters[name].string_value = str(limit)
    if model.priorities.levels:
        config.dynamic_batching.priority_levels = model.priorities.levels
        config.dynamic_batching.default_priority_level = model.priorities.default
    return model_configuration.edited(config, knobs)


def _limits(model: ServedModel) -> dict[str, int]:
    """What the model's file says about the sizes it takes and its parts, as parameters that are no knobs."""
    rows = {LIMIT_OF_ROWS: model.max_rows} if model.max_rows < KNOBS["max_batch_size"].high else {}
    sizes = {
        f"{LIMIT_OF_SIZE}{spec.name}": spec.max_size
        for spec in model.inputs.values()
        if spec.max_size is not None
    }
    can_be_split = model.surroundings.on_cluster and model.parts > 1
    parts = {LIMIT_OF_NODES: model.parts} if can_be_split else {}
    return rows | sizes | parts


def override(
    model: ServedModel, text: str, default_knobs: Knobs, default_resilience: ResilienceSettings
) -> tuple[Knobs, ResilienceSettings]:
    """What an override asks for; as in Triton it replaces all, so a knob left out gets its default.

    ValueError, in one sentence, for what cannot be obeyed.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"a configuration may have at most {MAX_TEXT_BYTES} characters, got {len(text)}")
    asked = model_configuration.parse(text)
    asked_for = model_configuration.knob_values(asked) | _no_batching(text)
    values = {name: value for name, value in asked_for.items() if name not in CLUSTER_KNOBS}
    check(values, KNOBS_ON_CLUSTER if model.surroundings.on_cluster else KNOBS)
    parameters = {name: parameter.string_value for name, parameter in asked.parameters.items()}
    resilience = from_parameters(parameters, default_resilience)
    present = model_config(model)
    as_sized = model_configuration.sized_as_in(present, asked)
    differs = _difference(_without_knobs(as_sized), _without_knobs(present))
    if differs:
        raise ValueError(
            f"the override changes {differs!r} of model {model.name!r}, which is no knob of this server; "
            "send the configuration that ModelConfig shows with only the knobs edited"
        )
    if values.get("inter_op_threads", 1) != 1 and not model.has_parallel_branches:
        raise ValueError(
            f"inter_op_threads={values['inter_op_threads']} has no effect on model {model.name!r}: "
            "it has no parallel branches; leave INTER_OP_THREAD_COUNT out"
        )
    where = placement.from_parameters(parameters, default_knobs.placement, model.surroundings.on_cluster)
    knobs = Knobs(**vars(default_knobs) | values | {"placement": where})
    model.check(knobs, resilience)
    return knobs, resilience


def _no_batching(text: str) -> dict[str, int]:
    """A max_batch_size of 0, which a message does not tell from one that was left out."""
    document = json.loads(text)
    given = document.get("max_batch_size", document.get("maxBatchSize"))
    return {"max_batch_size": 0} if given in (0, "0") and given is not False else {}


def _without_knobs(config: mc.ModelConfig) -> mc.ModelConfig:
    copy = mc.ModelConfig()
    copy.CopyFrom(config)
    model_configuration.clear_knobs(copy)
    for name in [name for name in copy.parameters if name.startswith((PREFIX, placement.PREFIX))]:
        del copy.parameters[name]
    return copy


def _difference(asked: Message, present: Message) -> str:
    """The path of the first field that is set in `asked` and differs in `present`; empty for none."""
    for field, value in asked.ListFields():
        there = getattr(present, field.name)
        deeper = _difference_of_values(value, there, present, field.name)
        if deeper is not None:
            return f"{field.name}{deeper}"
    return ""


def _difference_of_values(value: Any, there: Any, present: Message, name: str) -> str | None:
    """None if they agree, else what to append to the name."""
    if isinstance(value, Mapping):
        return next(
            (f".{key}" for key in sorted(value) if key not in there or value[key] != there[key]), None
        )
    if isinstance(value, MutableSequence):
        if len(value) != len(there):
            return ""
        pairs = enumerate(zip(value, there, strict=True))
        return next(
            (f"[{i}]{deeper}" for i, (a, b) in pairs if (deeper := _difference_of_items(a, b)) is not None),
            None,
        )
    if isinstance(value, Message):
        return _difference_of_items(value, there) if present.HasField(name) else ""
    return None if value == there else ""


def _difference_of_items(value: Any, there: Any) -> str | None:
    if not isinstance(value, Message):
        return None if value == there else ""
    path = _difference(value, there)
    return f".{path}" if path else None
