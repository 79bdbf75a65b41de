"""`parity-coding`: time to encode queries and to decode outputs, beside ParM's C++ (section 6.2.5).

Queries are FP32 images of 3 x 224 x 224, outputs 1,000 FP32 numbers. Every way is called in turns with the
others, on other data each time. A parity query is written into ordinary memory and, as the server does, into
the memory that it shares with its workers. The peer is the plain numpy way of saying the same.

    scripts/bench parity-coding [--calls 2000]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from serving_adapter.flags.parsing import parse
from serving_adapter.parity.coding import ENCODERS, Encoder, coefficients, decode
from serving_adapter.server.workers.arena import Arena, place

QUERY = (1, 3, 224, 224)
OUTPUT = (1, 1000)
KS = (2, 3, 4)
PAPER_ENCODE_US = {2: 93, 3: 153, 4: 193}
PAPER_DECODE_US = {2: 8, 3: 14, 4: 19}
GROUPS = 8  # of different data: 19 MB of queries for k = 4, more than a core's own caches hold
REACH = 1.0

Call = Callable[[int], object]
Groups = Sequence[Sequence[np.ndarray]]
PlainEncoder = Callable[[Sequence[np.ndarray], np.ndarray], None]
"""One encoding or decoding of the data of a group, by the group's number."""


@dataclass(frozen=True)
class Options:
    """Encodes and decodes coding groups of 2, 3 and 4."""

    calls: int = 2000
    """Calls of each way."""


def run() -> dict[str, Any]:
    calls = parse(Options, sys.argv[2:]).calls
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((GROUPS, max(KS), *QUERY), dtype=np.float32)
    outputs = rng.standard_normal((GROUPS, max(KS), *OUTPUT), dtype=np.float32)
    arena = Arena.create("parity-coding")
    (placed,), needed_bytes = place([("x", "FP32", QUERY, queries[0, 0].nbytes)])
    arena.ensure(needed_bytes)
    shared = arena.array(placed)

    encode_us = _encode_us("sum", _plain_sum, queries, shared, calls)
    _print("encode, sum", encode_us, PAPER_ENCODE_US)
    concat_us = _encode_us("concat", _plain_concat, queries, shared, calls)
    _print("encode, concat", concat_us, {})
    decode_us = {k: _medians_us(_decoders(outputs[:, :k], r=1), calls) for k in KS}
    _print("decode, r = 1", decode_us, PAPER_DECODE_US)
    decode_two_us = {k: _medians_us(_decoders(outputs[:, :k], r=2), calls) for k in KS}
    _print("decode, r = 2, two missing", decode_two_us, {})

    value, peer = (
        max(
            max(encode_us[k][way] / PAPER_ENCODE_US[k], decode_us[k][decoding] / PAPER_DECODE_US[k])
            for k in KS
        )
        for way, decoding in (("ours, shared", "ours"), ("numpy", "numpy"))
    )
    print("reach: every median of the sum encoder and of the decoder for r = 1 is under the paper's")
    return {
        "value": round(value, 2),
        "unit": "of the paper's time at most (sum into shared memory, and decoding; k = 2, 3, 4)",
        "peer": round(peer, 2),
        "ratio": round(peer / value, 2),
        "reach": REACH,
        "holds": value < REACH,
        "encode_us": _rounded(encode_us),
        "encode_concat_us": _rounded(concat_us),
        "decode_us": _rounded(decode_us),
        "decode_two_us": _rounded(decode_two_us),
    }


def _encode_us(
    name: str,
    plainly: PlainEncoder,
    queries: np.ndarray,
    shared: np.ndarray,
    calls: int,
) -> dict[int, dict[str, float]]:
    encoder, own = ENCODERS[name], np.empty(QUERY, np.float32)
    medians_us = {}
    for k in KS:
        groups, weights = [list(group[:k]) for group in queries], coefficients(k, 1)[0]
        ways: dict[str, Call] = {
            "ours": partial(_encode, encoder, groups, weights, own),
            "ours, shared": partial(_encode, encoder, groups, weights, shared),
            "numpy": partial(_encode_plainly, plainly, groups, shared),
        }
        encoder.encode(groups[0], weights, own)
        plainly(groups[0], shared)
        np.testing.assert_allclose(own, shared, atol=1e-5)
        medians_us[k] = _medians_us(ways, calls)
    return medians_us


def _encode(encoder: Encoder, groups: Groups, weights: np.ndarray, out: np.ndarray, number: int) -> None:
    encoder.encode(groups[number], weights, out)


def _encode_plainly(plainly: PlainEncoder, groups: Groups, out: np.ndarray, number: int) -> None:
    plainly(groups[number], out)


def _plain_sum(queries: Sequence[np.ndarray], out: np.ndarray) -> None:
    out[...] = np.sum(np.stack(queries), axis=0)


def _plain_concat(queries: Sequence[np.ndarray], out: np.ndarray) -> None:
    rows, columns = (1, 2) if len(queries) == 2 else (2, 2)
    n, channels, height, width = out.shape
    small = [
        query.reshape(n, channels, height // rows, rows, width // columns, columns).mean(axis=(3, 5))
        for query in queries
    ]
    small += [np.zeros_like(small[0])] * (rows * columns - len(small))
    out[...] = np.block([small[row * columns : (row + 1) * columns] for row in range(rows)])


def _decoders(outputs: np.ndarray, r: int) -> dict[str, Call]:
    """The last r outputs are missing; `outputs` is (groups, k, *OUTPUT)."""
    k = outputs.shape[1]
    c = coefficients(k, r)
    parities = [list(np.tensordot(c, group, 1).astype(np.float32)) for group in outputs]
    groups: list[list[np.ndarray | None]] = [[*group[: k - r], *[None] * r] for group in outputs]
    others = [list(group[: k - r]) for group in outputs]

    def plainly(i: int) -> np.ndarray:
        remainder = np.stack(parities[i])
        if others[i]:
            remainder = remainder - np.tensordot(c[:, : k - r], np.stack(others[i]), 1)
        return np.linalg.solve(c[:, k - r :], remainder.reshape(r, -1)).reshape(remainder.shape)

    def plainly_subtracting(i: int) -> np.ndarray:
        return parities[i][0] - np.sum(np.stack(others[i]), axis=0)

    return {
        "ours": lambda i: decode(c, groups[i], parities[i]),
        "numpy": plainly_subtracting if r == 1 else plainly,
    }


def _medians_us(ways: dict[str, Call], calls: int) -> dict[str, float]:
    """The ways in turns, each on data that the others have not touched for some turns."""
    taken_ns: dict[str, list[int]] = {name: [] for name in ways}
    for i in range(calls):
        for turn, (name, call) in enumerate(ways.items()):
            group = (i + 3 * turn) % GROUPS
            began_ns = perf_counter_ns()
            call(group)
            taken_ns[name].append(perf_counter_ns() - began_ns)
    return {name: median(times_ns) / 1e3 for name, times_ns in taken_ns.items()}


def _print(title: str, medians_us: dict[int, dict[str, float]], paper_us: dict[int, int]) -> None:
    print(
        f"{title:26}" + "".join(f"{name:>15}" for name in next(iter(medians_us.values()))) + "    paper   us"
    )
    for k, by_way in medians_us.items():
        measured = "".join(f"{value:15.1f}" for value in by_way.values())
        print(f"  k = {k:<20}{measured}{paper_us.get(k, '-'):>9}", flush=True)


def _rounded(medians_us: dict[int, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        str(k): {name: round(value, 1) for name, value in by_way.items()} for k, by_way in medians_us.items()
    }
