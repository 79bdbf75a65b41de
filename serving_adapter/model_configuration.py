"""Our knobs as the fields of a Triton `ModelConfig`: read them, set them, check them.

| knob | field |
|---|---|
| `instances` | `instance_group[0].count` |
| `intra_op_threads` | `parameters.INTRA_OP_THREAD_COUNT` |
| `inter_op_threads` | `parameters.INTER_OP_THREAD_COUNT` |
| `max_batch_size` | `max_batch_size` (0 means that the model takes no batches: no knob) |
| `max_queue_delay_us` | `dynamic_batching.max_queue_delay_microseconds` |
| `nodes_per_unit` | `parameters.CLUSTER_NODES_PER_UNIT` (our own server's, for models that carry a plan) |

A server that loads an override replaces the whole configuration by it, so an override is always the
configuration that was read, with only the knobs edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from serving_adapter.json_text import parsed
from serving_adapter.knob_limits import (
    CLUSTER_KNOBS,
    KNOBS,
    KNOBS_ON_CLUSTER,
    Configuration,
    Limits,
    check,
)

SERVER_NAME = "rrl-serve"  # what our own server calls itself; a Triton may have any name (--id)
_PARAMETER = {
    "intra_op_threads": "INTRA_OP_THREAD_COUNT",
    "inter_op_threads": "INTER_OP_THREAD_COUNT",
    "nodes_per_unit": "CLUSTER_NODES_PER_UNIT",
}
LIMIT_OF_ROWS = "LIMIT_MAX_BATCH_SIZE"  # a parameter: the rows that the model's file says it takes
LIMIT_OF_NODES = "LIMIT_NODES_PER_UNIT"  # a parameter: the parts that the model's plan splits it into
NODES_IN_USE = "CLUSTER_NODES"  # a parameter: the nodes that may be used at most, 0 for all
PARAMETERS_EXAMPLE = '{"INTRA_OP_THREAD_COUNT": {"string_value": "2"}}'


def parse(text: str | bytes) -> ModelConfig:
    """A ModelConfig from its JSON, in snake_case or camelCase; ValueError, in one sentence, otherwise."""
    try:
        document = parsed(text if isinstance(text, str) else text.decode(), _each_field_once)
        if not isinstance(document, dict):
            raise ValueError('a JSON object is expected, such as {"max_batch_size": 8}')
        _check_parameters_form(document.get("parameters", {}))
        return json_format.ParseDict(document, ModelConfig())
    except json_format.ParseError as error:
        problem = f"{_first_line(error)}; send the model's configuration as the server reports it, edited"
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text"
    except ValueError as error:
        problem = str(error)
    raise ValueError(f"the configuration is not a ModelConfig in JSON: {problem}")


def _each_field_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError if it names a field twice, be it in the two spellings that it has."""
    spellings: dict[str, str] = {}
    for name, _ in pairs:
        field = name.replace("_", "").lower()
        if field in spellings:
            raise ValueError(
                f"it has {spellings[field]!r} and {name!r}, which are one field; send one of them"
            )
        spellings[field] = name
    return dict(pairs)


def _check_parameters_form(parameters: object) -> None:
    """Raises ValueError unless they look as a server reports them; json_format's own words are no help."""
    if not isinstance(parameters, dict):
        raise ValueError(f"parameters must be {PARAMETERS_EXAMPLE}, got {_shortened(parameters)}")
    for name, value in parameters.items():
        text = value.get("string_value", value.get("stringValue", "")) if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise ValueError(
                f"the parameter {name!r} must look like {PARAMETERS_EXAMPLE}, got {_shortened(value)}"
            )


def _shortened(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]} ..."


def knob_values(config: ModelConfig | str) -> dict[str, int]:
    """The knobs that this configuration has, their values unchecked; ValueError where one is no number."""
    config = parse(config) if isinstance(config, str) else config
    values: dict[str, int] = {}
    if config.instance_group:
        values["instances"] = config.instance_group[0].count
    can_be_split = LIMIT_OF_NODES in config.parameters
    for name in _PARAMETER:
        parameter = _parameter(config, name)
        if parameter in config.parameters and (can_be_split or name not in CLUSTER_KNOBS):
            values[name] = _integer(config.parameters[parameter].string_value, parameter)
    if config.max_batch_size != 0:
        values["max_batch_size"] = config.max_batch_size
    if config.HasField("dynamic_batching"):
        values["max_queue_delay_us"] = config.dynamic_batching.max_queue_delay_microseconds
    return values


def limits(config: ModelConfig) -> dict[str, Limits]:
    """The limits of every knob; of `nodes_per_unit` only where the model can be split.

    Batches are no larger than the configuration says that the model takes. A cluster may have more instances.
    """
    usual = KNOBS_ON_CLUSTER if is_on_cluster(config) else KNOBS
    found = usual | {"max_batch_size": _limited(config, LIMIT_OF_ROWS, KNOBS["max_batch_size"])}
    if LIMIT_OF_NODES in config.parameters:
        found["nodes_per_unit"] = _limited(config, LIMIT_OF_NODES, CLUSTER_KNOBS["nodes_per_unit"])
    return found


def is_on_cluster(config: ModelConfig) -> bool:
    """Whether it is of our own server, with its workers on the nodes of a cluster."""
    return _PARAMETER["nodes_per_unit"] in config.parameters


def instances_that_fit(config: ModelConfig, cpus_by_node: Sequence[int]) -> int:
    """The most instances on nodes with so many CPUs, each of which is for one worker; 1 at least.

    A unit has its workers on different nodes. Where only some may be used, those are the largest.
    """
    usable = sorted(cpus_by_node, reverse=True)[: _told(config, NODES_IN_USE) or None]
    members = _told(config, _PARAMETER["nodes_per_unit"]) or 1
    for instances in range(sum(usable) // members, 1, -1):
        if sum(min(cpus, instances) for cpus in usable) >= members * instances:
            return instances
    return 1


def _told(config: ModelConfig, parameter: str) -> int | None:
    """The number in a parameter; None where there is none."""
    return whole_number(config.parameters[parameter].string_value) if parameter in config.parameters else None


def _limited(config: ModelConfig, parameter: str, limits: Limits) -> Limits:
    """These, no higher than the parameter says, where there is one."""
    return Limits(limits.low, max(limits.low, min(limits.high, _told(config, parameter) or limits.high)))


def all_instances(config: ModelConfig) -> int:
    """The instances of all groups; a group's count is that of each of its GPUs."""
    return sum(group.count * _places(group) for group in config.instance_group)


def sized_as_in(present: ModelConfig, config: ModelConfig) -> ModelConfig:
    """A copy with the sizes of its outputs as they are described by now.

    Our own server learns them from answers, each front for itself and each start anew. So where one that
    was read before, or from another front, has a size, this one may have -1, or the other way round.
    """
    copy = ModelConfig()
    copy.CopyFrom(config)
    described = {output.name: output.dims for output in present.output}
    for output in copy.output:
        dims = described.get(output.name, ())
        pairs = zip(output.dims, dims, strict=False)
        if len(output.dims) == len(dims) and all(a == b or -1 in (a, b) for a, b in pairs):
            output.dims[:] = dims
    return copy


def edited(
    config: ModelConfig, configuration: Configuration, found: Configuration | None = None
) -> ModelConfig:
    """A copy with these knobs set; the fields of knobs that it did not have are made.

    ValueError for a value out of limits, unless it is there already or was `found`.
    """
    known = knob_values(config).items() | (found or {}).items()
    check(dict(configuration.items() - known), limits(config))
    copy = ModelConfig()
    copy.CopyFrom(config)
    for name, value in configuration.items():
        if name == "instances":
            group = copy.instance_group[0] if copy.instance_group else copy.instance_group.add()
            group.count = value
        elif name == "max_batch_size":
            _set_max_batch_size(copy, value)
        elif name == "max_queue_delay_us":
            copy.dynamic_batching.max_queue_delay_microseconds = value
            copy.dynamic_batching.SetInParent()  # so that a delay of 0 keeps the batcher
        else:
            copy.parameters[_parameter(copy, name)].string_value = str(value)
    return copy


def clear_knobs(config: ModelConfig) -> None:
    """Takes the values of all knobs out, so that two configurations can be compared in the rest."""
    config.max_batch_size = 0
    for group in config.instance_group:
        group.count = 0
    for name in _PARAMETER:
        for key in _spellings(name):
            config.parameters.pop(key, None)
    if config.HasField("dynamic_batching"):
        config.dynamic_batching.max_queue_delay_microseconds = 0


def _places(group: ModelInstanceGroup) -> int:
    return max(1, len(group.gpus)) if group.kind == ModelInstanceGroup.KIND_GPU else 1


def _parameter(config: ModelConfig, name: str) -> str:
    """The key of the parameter, in the spelling that is there."""
    return next((key for key in _spellings(name) if key in config.parameters), _PARAMETER[name])


def _spellings(name: str) -> tuple[str, ...]:
    """The ONNX Runtime backend has numbers of threads in lower case."""
    upper = _PARAMETER[name]
    return (upper,) if name in CLUSTER_KNOBS else (upper.lower(), upper)


def _set_max_batch_size(config: ModelConfig, value: int) -> None:
    """Preferred sizes follow: Triton fills in the largest where none is set, and refuses larger ones."""
    if config.HasField("dynamic_batching"):
        preferred = config.dynamic_batching.preferred_batch_size
        filled_in = list(preferred) == [config.max_batch_size]
        fitting = [value] if filled_in else [size for size in preferred if size <= value]
        config.dynamic_batching.preferred_batch_size[:] = fitting
    config.max_batch_size = value


def as_json(config: ModelConfig) -> str:
    """What a server loads as an override.

    Raises ValueError rather than drop a field: neither JSON nor text carries what the installed messages do
    not know.
    """
    text = json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
    _check_kept(json_format.Parse(text, ModelConfig()), config)
    return text


def as_pbtxt(config: ModelConfig) -> str:
    """The text of a `config.pbtxt`; ValueError as in `as_json`."""
    text = text_format.MessageToString(config)
    _check_kept(text_format.Parse(text, ModelConfig(), allow_unknown_field=True), config)
    return text


def parse_pbtxt(text: str) -> ModelConfig:
    """What `as_pbtxt` wrote; ValueError, in one sentence, for what is no such text."""
    try:
        return text_format.Parse(text, ModelConfig())
    except (text_format.ParseError, ValueError, RecursionError) as error:  # ValueError: a number too large
        raise ValueError(f"this is not a ModelConfig in text format: {error}") from None


def _check_kept(read_again: ModelConfig, config: ModelConfig) -> None:
    if _bytes(read_again) != _bytes(config):
        raise ValueError(
            f"the configuration of model {config.name!r} has fields that the installed tritonclient does "
            "not know and would drop; install the tritonclient of the server's version"
        )


def _bytes(config: ModelConfig) -> bytes:
    return config.SerializeToString(deterministic=True)


def _integer(text: str, parameter: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError(
            f'parameters.{parameter}.string_value must be an integer as text, e.g. "2", got {text[:80]!r}'
        )
    return number


def whole_number(text: str) -> int | None:
    """A number as other programs read it too: digits, with a sign and blanks at most; None for any other."""
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text) else None


def _first_line(error: Exception) -> str:
    """json_format appends a list of all fields; the first line says what is wrong."""
    return str(error).splitlines()[0].rstrip(". ")
