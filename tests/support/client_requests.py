"""What clients saw, told by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scripts.serving.client_log import Requests


def requests(latencies_ms: Sequence[float], began_at: float = 0.0, failed: Sequence[int] = ()) -> Requests:
    """One a second."""
    at = began_at + np.arange(len(latencies_ms), dtype=float)
    return Requests(at, np.asarray(latencies_ms, dtype=float), np.isin(np.arange(len(at)), failed))


def rounds(rounds_ms: Mapping[int, Sequence[float]]) -> dict[int, list[Requests]]:
    """Of each configuration, twenty requests of the same latency in each round."""
    return {number: [requests([ms] * 20) for ms in each_ms] for number, each_ms in rounds_ms.items()}
