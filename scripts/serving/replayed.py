"""The same requests at the same moments, sent to a server as often as wanted.

`rrl-load` sends them from a process of its own, open loop: whether those before are answered or not.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts.serving.processes import started
from serving_adapter.load.options import LoadOptions


class ClientFigures(NamedTuple):
    """What `rrl-load` reports of the requests that it sent."""

    sent: int
    failed: int
    latency_s: float  # of all requests, summed; a failed one counts as the longest wait for an answer
    late_ms: float  # by which the client itself sent at worst
    duration_s: float  # from the first moment to the end of sending

    @classmethod
    def read(cls, folder: Path) -> ClientFigures:
        """Of the load that wrote to this folder."""
        report = json.loads((folder / "load.json").read_text(encoding="utf-8"))
        failed = sum(report["failed"].values())
        mean_ms = report["latency_ms"]["mean"] if report["latency_ms"] is not None else 0.0
        latency_s = report["completed"] * mean_ms / 1e3 + failed * LoadOptions.timeout_s
        return cls(report["sent"], failed, latency_s, report["send_lag_max_ms"], report["duration_s"])


def write_moments(path: Path, moments_s: np.ndarray) -> float:
    """Writes a trace that begins with the first moment. Returns the rate that replays it at its own speed."""
    moments_us = np.round(1e6 * (moments_s - moments_s[0])).astype(np.int64)
    lines = [f"{us / 1e6:.6f}" for us in moments_us.tolist()]
    path.write_text("\n".join(["t_s", *lines, ""]), encoding="utf-8")
    return (len(moments_us) - 1) / (float(moments_us[-1]) / 1e6)


def replay(address: str, moments_s: np.ndarray, folder: Path) -> ClientFigures:
    """Sends the requests and waits for their answers. A row a request is in `folder`, for `Requests.read`."""
    with tempfile.TemporaryDirectory(prefix="rrl-bench-") as traces:
        trace = Path(traces) / "moments.csv"
        rate_per_s = write_moments(trace, moments_s)
        arguments = ("--target", address, "--arrivals", trace, "--rate", rate_per_s, "--duration-s", 0)
        with started(
            "serving_adapter.load.command_line", *arguments, "--requests", "--out", folder
        ) as client:
            output, _ = client.communicate()
    if client.returncode != 0:
        raise RuntimeError(f"rrl-load ended with {client.returncode}: {output.strip() or 'it said nothing'}")
    return ClientFigures.read(folder)
