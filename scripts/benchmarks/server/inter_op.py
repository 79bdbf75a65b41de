"""`inter-op`: Inception-V3 on one request at a time, its branches on one and on two inter-op threads."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from scripts.serving.closed_loop import closed_loop
from scripts.serving.processes import infer_request, serving
from serving_adapter.target import OpenInferenceTarget

ROUNDS = 4
SECONDS = 6.0
REACH = 1.1  # measurable


def run() -> dict[str, Any]:
    image = np.random.default_rng(0).standard_normal((1, 3, 299, 299), dtype=np.float32)
    request = infer_request("inception_v3", "image", "FP32", list(image.shape), image.tobytes())
    p50_ms: dict[int, list[float]] = {1: [], 2: []}
    with serving("inception_v3", "--intra-op-threads", 1) as address:
        target = OpenInferenceTarget(address)
        target.connect()
        for _ in range(ROUNDS):
            for inter_op_threads, measured in p50_ms.items():
                target.apply({"inter_op_threads": inter_op_threads})
                measured.append(closed_loop(address, [request], 1, SECONDS).p50_ms)
        target.close()
    ratio = median(one / two for one, two in zip(p50_ms[1], p50_ms[2], strict=True))
    one_ms, two_ms = median(p50_ms[1]), median(p50_ms[2])
    print(f"Inception-V3, 1 intra-op thread: p50 {one_ms:.0f} ms, {two_ms:.0f} ms with 2 inter-op threads")
    return {
        "value": round(two_ms, 1),
        "unit": "ms p50 with 2 inter-op threads",
        "peer": round(one_ms, 1),
        "ratio": round(ratio, 2),
        "reach": REACH,
        "holds": ratio >= REACH,
    }
