"""SERF, Fig. 5: how alike the service times of one parallelism tuple are.

Real server: `rrl-serve` with MiniLM, 32 tokens a request, 1 and 2 intra-op threads. Requests come one by one.
The server's own counters are read between them, so each request's service time is known. A seed is a block of
requests, under each number of threads in turn.

Beside it stands a question of arithmetic, to which no measurement is needed. The paper prints an SCV and a
range in which most requests are. How many would be there with that SCV, or with that number as a plain
coefficient of variation (CV)? Both are of lognormal times around the middle of the range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.profile_load import ProfileLoad
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.serving.minilm_requests import TOKENS
from scripts.serving.processes import serving
from serving_adapter.target import OpenInferenceTarget

INTRA_OP_THREADS = (1, 2)
REQUESTS = 60  # in a block
WARM_UP_REQUESTS = 10  # before each block
NODES_OF_PAPER = {"on one node": 0.03, "across nodes": 0.09}  # its SCVs


class Printed(NamedTuple):
    """What the paper says of one tuple."""

    tuple_: str
    low_ms: float
    high_ms: float
    scv: float


PRINTED = (Printed("(2, 1, 4)", 330.0, 340.0, 0.03), Printed("(4, 4, 2)", 130.0, 160.0, 0.09))


def run(
    out: Path, seeds: int, requests: int = REQUESTS, threads: Sequence[int] = INTRA_OP_THREADS
) -> FigureResult:
    times_ms = 1e3 * _measured_s(seeds, requests, threads)  # (threads, seeds, requests)
    write_csv(
        out / "serf-fig5.csv",
        [
            {"intra": intra, "block": block, "service_ms": float(time_ms)}
            for intra, blocks in zip(threads, times_ms, strict=True)
            for block, row in enumerate(blocks)
            for time_ms in row
        ],
    )
    _draw(out / "serf-fig5.png", threads, times_ms)
    measured = [_measured_claim(intra, blocks) for intra, blocks in zip(threads, times_ms, strict=True)]
    return FigureResult(
        title="SERF, Fig. 5: homogeneous requests",
        setting=f"Real server: MiniLM, {seeds} blocks of {requests} requests one by one for each tuple.",
        seeds=seeds,
        claims=(*measured, *(claim for printed in PRINTED for claim in _printed_claims(printed))),
        pictures=("serf-fig5.png",),
        tables=("serf-fig5.csv",),
    )


def _measured_s(seeds: int, requests: int, threads: Sequence[int]) -> np.ndarray:
    """(threads, seeds, requests) service times."""
    times_s = np.empty((len(threads), seeds, requests))
    with serving("minilm") as address:
        target = OpenInferenceTarget(address)
        target.connect()
        load = ProfileLoad(address, target.model, TOKENS)
        try:
            for block in range(seeds):
                for k, intra in enumerate(threads):
                    target.apply({"instances": 1, "intra_op_threads": intra, "max_batch_size": 1})
                    load.drive(WARM_UP_REQUESTS, 1)
                    times_s[k, block] = _one_by_one_s(target, load, requests)
        finally:
            load.close()
            target.close()
    return times_s


def _one_by_one_s(target: OpenInferenceTarget, load: ProfileLoad, requests: int) -> np.ndarray:
    totals_s = [target.read().service_s]
    for _ in range(requests):
        load.drive(1, 1)
        totals_s.append(target.read().service_s)
    return np.diff(totals_s)


def _measured_claim(intra: int, blocks_ms: np.ndarray) -> Claim:
    """The SCV within a block, so that the machine's speed may change from one to the next."""
    scvs = blocks_ms.var(axis=1, ddof=1) / blocks_ms.mean(axis=1) ** 2
    limit = NODES_OF_PAPER["on one node"]
    return Claim(
        f"SCV of the service time, tuple (1, 1, {intra}), real server",
        f"{limit:g}, tuple (2, 1, 4)",
        bootstrap_mean(scvs).text(".4f"),
        REPRODUCES
        if scvs.mean() <= limit
        else PARTLY
        if scvs.mean() <= NODES_OF_PAPER["across nodes"]
        else FAILS,
    )


def _printed_claims(printed: Printed) -> list[Claim]:
    """Whether most requests are in the paper's range, by either reading of its number."""
    claims = []
    for reading, scv in (
        (f"an SCV of {printed.scv:g}", printed.scv),
        (f"a CV of {printed.scv:g}", printed.scv**2),
    ):
        share = share_within(printed.low_ms, printed.high_ms, scv)
        claims.append(
            Claim(
                f"requests of {printed.tuple_} in {printed.low_ms:g}-{printed.high_ms:g} ms with {reading}",
                "the majority",
                f"{100 * share:.0f} %",
                REPRODUCES if share > 0.5 else FAILS,
            )
        )
    return claims


def share_within(low_ms: float, high_ms: float, scv: float) -> float:
    """The share of lognormal times of this SCV, around the middle of a range, that lie in it."""
    middle_ms, sigma = math.sqrt(low_ms * high_ms), math.sqrt(math.log1p(scv))
    below = [
        0.5 * (1 + math.erf(math.log(end / middle_ms) / sigma / math.sqrt(2))) for end in (low_ms, high_ms)
    ]
    return below[1] - below[0]


def _draw(path: Path, threads: Sequence[int], times_ms: np.ndarray) -> None:
    figure, axes = drawing.new_figure(
        width=5.4,
        height=3.2,
        title="Service times of one tuple (SERF, Fig. 5)",
        subtitle="Real server, MiniLM: share of requests by service time over the block's mean",
    )
    ax = axes[0, 0]
    for colour, intra, blocks in zip(figure_style.COLOURS, threads, times_ms, strict=False):
        relative = np.sort((blocks / blocks.mean(axis=1, keepdims=True)).ravel())
        shares = 100 * np.arange(1, len(relative) + 1) / len(relative)
        ax.plot(relative, shares, color=colour, linewidth=1.7, label=f"(1, 1, {intra})")
    ax.set_xlim(0.5, 2.0)
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    drawing.names(ax, "service time over the mean", "requests (%)")
    drawing.save(figure, path)
