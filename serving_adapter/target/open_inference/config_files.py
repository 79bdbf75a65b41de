"""The files that take a model's configuration to another server."""

from __future__ import annotations

import json
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.model_configuration import as_json, as_pbtxt

CONFIG_PBTXT = "config.pbtxt"
MODEL_CONFIG = "model_config.json"
FOLDERS = "config"  # of several models: a folder of each, as a model repository has them


def files_of(config: ModelConfig) -> dict[str, str]:
    """Its `config.pbtxt`, and the override that a running server loads."""
    return {CONFIG_PBTXT: as_pbtxt(config), MODEL_CONFIG: indented(json.loads(as_json(config)))}


def indented(document: Any) -> str:
    return json.dumps(document, indent=2) + "\n"
