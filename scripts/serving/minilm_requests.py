"""The requests that the MiniLM benchmarks send: 32 tokens each."""

from __future__ import annotations

import numpy as np

from scripts.serving.processes import infer_request

TOKENS = 32


def token_ids(count: int) -> np.ndarray:
    """(count, TOKENS) int64."""
    return np.random.default_rng(0).integers(1000, 20000, (count, TOKENS))


def grpc_requests(count: int = 64) -> list[bytes]:
    return [
        infer_request("minilm", "token_ids", "INT64", [1, TOKENS], row.tobytes()) for row in token_ids(count)
    ]
