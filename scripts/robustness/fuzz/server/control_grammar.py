"""Changes of the configuration by a grammar: what RepositoryModelLoad is sent.

Values that are obeyed stay small (`AT_MOST`), since 64 instances with 256 threads are a right answer to a
wrong question. What is out of the server's limits is drawn too.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.fuzz.calls import Fate
from scripts.robustness.fuzz.mutation import mutated
from scripts.robustness.fuzz.odd_values import ODD_NAMES, put_parameter
from scripts.robustness.fuzz.server.oracle import MINILM
from serving_adapter import model_configuration

AT_MOST = {"instances": 3, "intra_op_threads": 2, "inter_op_threads": 2, "max_batch_size": 16}
SHARE_OF_SOUND = 0.04
RESILIENCE = {
    "RESILIENCE_MODE": ("none", "hedging", "replication", "equal-resources", "parity", "default-answer", "x"),
    "RESILIENCE_K": ("2", "1", "64", "-1", "x"),
    "RESILIENCE_R": ("1", "9", "0x1"),
    "RESILIENCE_REDUNDANT_INSTANCES": ("0", "1", "65", "1e3"),
    "RESILIENCE_LATE_PERCENTILE": ("95", "101", ""),
    "RESILIENCE_LATE_AFTER_US": ("0", "100000", "99999999999999999999"),
    "RESILIENCE_GROUP_TIMEOUT_US": ("100000", "-1"),
    "RESILIENCE_OVERFLOW": ("1", "2"),
    "RESILIENCE_MODUS": ("none",),
}
ODD_VALUES: tuple[Any, ...] = (
    *(0, -1, 65, 257, 2**31, 2**63, 10**40, 1.5, "2", "x", "", None, True, [], {}, [1], {"a": 1}, [[[[]]]]),
)
ODD_FIELDS: dict[str, Any] = {
    "max_batch_sise": 8,
    "maxBatchSize": 4,
    "instance_group": [{"count": 1}, {"count": 2}],
    "instanceGroup": [{"count": 2, "kind": "KIND_GPU", "gpus": [0]}],
    "dynamic_batching": {
        "preferred_batch_size": [4, 8],
        "default_queue_policy": {"timeout_action": "REJECT"},
    },
    "sequence_batching": {"direct": {}},
    "ensemble_scheduling": {"step": [{"model_name": "minilm"}]},
    "optimization": {"cuda": {"graphs": True}},
    "model_warmup": [{"name": "x", "batch_size": 1}],
    "version_policy": {"latest": {"num_versions": 2}},
    "default_model_filename": "../../x",
    "parameters": {
        "INTRA_OP_THREAD_COUNT": {"string_value": "2 "},
        "INTRA_OP_THREADS": {"string_value": "2"},
    },
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [],
    "name": "another",
    "backend": "onnxruntime",
    "response_cache": {"enable": True},
}


def load_request(rng: Random) -> tuple[Any, Fate, str]:
    """A request to load a model with a configuration, what must become of it, and what it is."""
    model = rng.choice((MINILM, "two_outputs"))
    request = pb.RepositoryModelLoadRequest(model_name=model)
    if rng.random() < SHARE_OF_SOUND:
        request.parameters["config"].string_param = json.dumps(_sound(rng))
        return request, Fate.EITHER, "sound configuration"
    name, text = _text(rng)
    if is_modest(text):
        request.parameters["config"].string_param = text
    if rng.random() < 0.1:
        name, request.model_name = "load of an odd model", rng.choice(ODD_NAMES)
    if rng.random() < 0.1:
        name = "load with an odd parameter"
        put_parameter(request.parameters[rng.choice(("config", "file:1/model.pt", "", "x"))], rng)
    return request, Fate.EITHER, name


def _sound(rng: Random) -> dict[str, Any]:
    config: dict[str, Any] = {
        "max_batch_size": rng.choice((1, 4, 8, 16)),
        "instance_group": [{"count": rng.randint(1, 3)}],
        "dynamic_batching": {"max_queue_delay_microseconds": rng.choice((0, 100, 2000))},
        "parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": str(rng.randint(1, 2))}},
    }
    if rng.random() < 0.3:
        mode = rng.choice(("none", "hedging", "replication", "equal-resources"))
        config["parameters"]["RESILIENCE_MODE"] = {"string_value": mode}
    return config


def _text(rng: Random) -> tuple[str, str]:
    config = _sound(rng)
    draw = rng.random()
    if draw < 0.3:
        config[rng.choice(list(config))] = rng.choice(ODD_VALUES)
        return "configuration with an odd value", json.dumps(config)
    if draw < 0.5:
        name = rng.choice(list(ODD_FIELDS))
        return f"configuration with {name}", json.dumps(config | {name: ODD_FIELDS[name]})
    if draw < 0.7:
        setting = rng.choice(list(RESILIENCE))
        config["parameters"][setting] = {"string_value": rng.choice(RESILIENCE[setting])}
        return "configuration with a resilience setting", json.dumps(config)
    if draw < 0.71:
        deep = rng.choice((100, 100_000))
        return "deep configuration", rng.choice(("[" * deep, '{"input":[' * deep, '{"a":' * deep))
    if draw < 0.715:
        return "long configuration", json.dumps(config)[:-1] + " " * rng.choice((70_000, 2_000_000)) + "}"
    damaged = mutated(json.dumps(config).encode(), rng)
    return "damaged configuration", damaged.decode("utf-8", errors="replace")


def is_modest(text: str) -> bool:
    """False for a configuration that the server must obey and that would drown the machine."""
    if len(text) > 50_000:
        return True  # it is refused, or read as one of the small ones above
    try:
        config = model_configuration.parse(text)
        values = model_configuration.knob_values(config)
        redundant = config.parameters["RESILIENCE_REDUNDANT_INSTANCES"].string_value
        mode = config.parameters["RESILIENCE_MODE"].string_value
    except (ValueError, RecursionError):
        return True
    small = all(
        values.get(name, 1) <= most or values[name] > model_configuration.KNOBS[name].high
        for name, most in AT_MOST.items()
    )
    low = model_configuration.KNOBS["max_queue_delay_us"].high
    quick = not 5000 < values.get("max_queue_delay_us", 0) <= low
    return small and quick and mode != "default-answer" and redundant in ("", "0", "1", "65", "1e3")


def config_of(answer: bytes) -> mc.ModelConfig:
    """The configuration in an answer of ModelConfig."""
    return pb.ModelConfigResponse.FromString(answer).config
