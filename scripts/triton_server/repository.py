"""Model repositories for Triton's Python backend: our models, as `rrl-serve` runs them.

`write_repository` writes NAME/config.pbtxt and NAME/1/model.py for each model. The light ones (`noop`,
`sleep`, `burn`, `add_sub`) need no torch, so that they load in a fraction of a second.
"""

from __future__ import annotations

import json
import py_compile
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from serving_adapter.model_configuration import edited

PYTHON_MODEL = Path(__file__).with_name("python_model.py")

DEFAULT_KNOBS = {
    "instances": 1,
    "intra_op_threads": 1,
    "inter_op_threads": 1,
    "max_batch_size": 8,
    "max_queue_delay_us": 0,
}

_LIGHT = (
    'input { name: "x" data_type: TYPE_FP32 dims: 16 } output { name: "y" data_type: TYPE_FP32 dims: 16 }'
)
_IN_PAIRS = " ".join(
    f'{side}put {{ name: "{side.upper()}PUT__{k}" data_type: TYPE_FP32 dims: 16 }}'
    for side in ("in", "out")
    for k in (0, 1)
)
ADD_SUB = "add_sub"  # the model of Model Analyzer's quick start; it has no threads of its own to set
TENSORS: dict[str, str] = {
    "minilm": (
        # Ragged: requests of different lengths share a batch, in which the model pads them.
        'input { name: "token_ids" data_type: TYPE_INT64 dims: -1 allow_ragged_batch: true } '
        'output { name: "embedding" data_type: TYPE_FP32 dims: 384 }'
    ),
    "efficientnet_lite0": (
        'input { name: "image" data_type: TYPE_FP32 dims: [3, 224, 224] } '
        'output { name: "logits" data_type: TYPE_FP32 dims: 1000 }'
    ),
    "noop": _LIGHT,
    "sleep": _LIGHT,
    "burn": _LIGHT,
    ADD_SUB: _IN_PAIRS,
}
"""The models that can be written, and what goes in and comes out, as `config.pbtxt` says it."""


@dataclass(frozen=True)
class ModelSpec:
    """One model of a repository."""

    kind: str = "sleep"
    options: Mapping[str, float] = field(default_factory=dict)  # of the model, e.g. {"ms": 5}
    knobs: Mapping[str, int] = field(default_factory=dict)  # where they differ from DEFAULT_KNOBS
    extra: str = ""  # more of config.pbtxt

    def config(self, name: str) -> ModelConfig:
        """ValueError, in one sentence, where the specification is no good."""
        if self.kind not in TENSORS:
            raise ValueError(f"unknown model {self.kind!r}; Triton can be given {', '.join(TENSORS)}")
        config = ModelConfig(name=name, backend="python")
        text_format.Merge(TENSORS[self.kind], config)
        text_format.Merge(self.extra, config)
        config.parameters["MODEL"].string_value = self.kind
        config.parameters["MODEL_OPTIONS"].string_value = json.dumps(dict(self.options))
        if not config.instance_group:
            config.instance_group.add(kind=ModelInstanceGroup.KIND_CPU)
        knobs = {**DEFAULT_KNOBS, **self.knobs}
        if config.HasField("sequence_batching"):
            knobs.pop("max_queue_delay_us")  # which is the dynamic batcher's
        if self.kind == ADD_SUB:
            knobs = {name: value for name, value in knobs.items() if not name.endswith("_op_threads")}
        return edited(config, knobs)


def write_repository(folder: Path, models: Mapping[str, ModelSpec]) -> Path:
    """Writes the models into the folder, which is made; returns it.

    Python's cache is written with them. If it appeared only when the model is first loaded, Triton would take
    it for a change of the model, and make the next change of instances a full reload.
    """
    for name, spec in models.items():
        config = text_format.MessageToString(spec.config(name))
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(config, encoding="utf-8")
        py_compile.compile(str(shutil.copyfile(PYTHON_MODEL, version / "model.py")), doraise=True)
    return folder
