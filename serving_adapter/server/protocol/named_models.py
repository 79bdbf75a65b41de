"""The models of a server by the names and versions that clients call them."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from serving_adapter.server.protocol.inference_request import names
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.served_model import MODEL_VERSION, ServedModel

Models = Mapping[str, ServedModel]


def known_model(models: Models, name: str, version: str = "") -> ServedModel:
    """Refused, in one sentence, where the server has no such model."""
    if name not in models:
        sentence = f"unknown model {name!r}; this server has {names(models)}"
        raise Refused(grpc.StatusCode.NOT_FOUND, sentence)
    if version not in ("", MODEL_VERSION):
        sentence = f"model {name!r} has version {MODEL_VERSION} only, not {version!r}"
        raise Refused(grpc.StatusCode.NOT_FOUND, sentence)
    return models[name]


def open_model(models: Models, name: str, version: str = "") -> ServedModel:
    """One that takes requests; Refused where it does not, or is not known."""
    model = known_model(models, name, version)
    if not model.is_open:
        sentence = f"model {name!r} is starting or shutting down; try again"
        raise Refused(grpc.StatusCode.UNAVAILABLE, sentence)
    return model
