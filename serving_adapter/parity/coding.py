"""Encoders and the decoder of ParM: the parities of k queries, and outputs out of parities.

| symbol | meaning | shape |
|---|---|---|
| k | queries of a coding group | |
| r | parities of a group: as many of its outputs may be missing | |
| C | coefficients, C[j, i] = (i + 1)^j for parity j and query i | (r, k) |
| X_i | query i | (rows, *item) |
| P_j | parity query j; under the sum encoder P_j = sum_i C[j, i] X_i | (rows, *item) |
| F(X_i) | output i of the deployed model | (rows, *output) |
| F_P(P_j) | output of parity model j, trained to be sum_i C[j, i] F(X_i) | (rows, *output) |

Row 0 of C is all ones: the addition and subtraction of section 4.2. The rows are powers of different
positive numbers, so every square part of C has an inverse: any k of the k + r outputs suffice (section 7).

The paper's second parity model is given the same P = X_1 + X_2 as the first and trained towards
F(X_1) + 2 F(X_2). P is the same whichever query comes first, the target is not; hence a P_j for each j here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np

from serving_adapter.tensors import TensorSpec

BLOCK_BYTES = 1 << 20  # of each array summed at a time: more would leave the caches before the next term
MAX_COEFFICIENT = 4096  # of a query in a parity query, k^(r-1): FP32 keeps half of its 24 bits then


def check_code(k: int, r: int, names: tuple[str, str] = ("k", "r")) -> None:
    """ValueError, in one sentence with these names, for a code that nobody could train or serve."""
    k_name, r_name = names
    if r > k:
        raise ValueError(f"{r_name}={r} is more than {k_name}={k}, the size of a coding group; lower it")
    if k ** (r - 1) > MAX_COEFFICIENT:
        raise ValueError(
            f"{k_name}={k} with {r_name}={r} weighs queries up to k^(r-1) = {k ** (r - 1)} times, of which "
            f"FP32 keeps too few digits (at most {MAX_COEFFICIENT}); lower one of them"
        )


@cache
def coefficients(k: int, r: int) -> np.ndarray:
    """C: Vandermonde, (r, k) float64, read-only."""
    if k < 2 or r < 1:
        raise ValueError(f"no coding group has k = {k} and r = {r}: k is 2 or more, r is 1 or more")
    matrix = np.vander(np.arange(1.0, k + 1), r, increasing=True).T
    matrix.setflags(write=False)
    return matrix


class Encoder(Protocol):
    """Makes a parity query, of one query's size, of the k queries of a coding group."""

    name: str

    def check(self, spec: TensorSpec, k: int) -> None:
        """ValueError where groups of k queries with this input cannot be encoded."""
        ...

    def encode(self, queries: Sequence[np.ndarray], weights: np.ndarray, out: np.ndarray) -> None:
        """Writes the parity of `queries` (k arrays of (rows, *item)) into `out`; `weights` is a row of C."""
        ...


class SumEncoder:
    """P_j = sum_i C[j, i] X_i (section 4.2), for inputs of any meaning."""

    name = "sum"

    def check(self, spec: TensorSpec, k: int) -> None:
        _check_input(spec, self.name)

    def encode(self, queries: Sequence[np.ndarray], weights: np.ndarray, out: np.ndarray) -> None:
        _weighted_sum(queries, weights.tolist(), out)


class ConcatEncoder:
    """Downsizes images by area averaging and lays them in a grid, row by row (section 5.2.3).

    Images are (channels, height, width) or (height, width). The queries' places tell them apart, so all
    parities of a group are alike and the weights are not used. Cells without an image are zero.
    """

    name = "concat"

    def check(self, spec: TensorSpec, k: int) -> None:
        _check_input(spec, self.name)
        if len(spec.shape) not in (2, 3):
            raise ValueError(
                f"input {spec.name!r} has the shape {list(spec.shape)}, but the concat encoder takes images: "
                "[channels, height, width] or [height, width]"
            )
        (rows, columns), (height, width) = _grid(k), spec.shape[-2:]
        if height % rows or width % columns:
            fitting_height = rows * max(1, height // rows)
            fitting_width = columns * max(1, width // columns)
            raise ValueError(
                f"input {spec.name!r} has images of {height} x {width}, which the concat encoder cannot "
                f"divide into a grid of {rows} x {columns} for k = {k}; images of {fitting_height} x "
                f"{fitting_width} would fit"
            )

    def encode(self, queries: Sequence[np.ndarray], weights: np.ndarray, out: np.ndarray) -> None:
        rows, columns = _grid(len(queries))
        *leading, height, width = out.shape
        cell_height, cell_width = height // rows, width // columns
        low = np.empty((*leading, cell_height, width), out.dtype) if rows > 1 else None
        for cell in range(rows * columns):
            top, left = cell // columns * cell_height, cell % columns * cell_width
            place = out[..., top : top + cell_height, left : left + cell_width]
            if cell < len(queries):
                _downsize(queries[cell], low, place)
            else:
                place[...] = 0
        np.multiply(out, 1 / (rows * columns), out=out)


ENCODERS: dict[str, Encoder] = {encoder.name: encoder for encoder in (SumEncoder(), ConcatEncoder())}


def is_decodable(outputs_there: Sequence[bool], parities_there: Sequence[bool]) -> bool:
    """Whether the outputs that are missing, if any, can be reconstructed."""
    return len(outputs_there) - sum(outputs_there) <= sum(parities_there)


def decode(
    coefficients: np.ndarray,
    outputs: Sequence[np.ndarray | None],
    parities: Sequence[np.ndarray | None],
) -> dict[int, np.ndarray]:
    """Reconstructs every missing output, by its number, from the lowest parities that are there.

    `outputs` are the k F(X_i) and `parities` the r F_P(P_j), all of one shape, None where missing.
    """
    missing = [i for i, output in enumerate(outputs) if output is None]
    rows = [j for j, parity in enumerate(parities) if parity is not None][: len(missing)]
    if len(rows) < len(missing):
        raise ValueError(
            f"{len(missing)} outputs of a coding group are missing and only {len(rows)} of its parities are "
            "there; there must be a parity for each missing output"
        )
    present = [i for i, output in enumerate(outputs) if output is not None]
    known = [array for array in (*(parities[j] for j in rows), *outputs) if array is not None]
    reconstructed = {}
    for i, weights in zip(missing, _decoding_weights(coefficients, rows, missing, present), strict=True):
        reconstructed[i] = np.empty_like(known[0])
        _weighted_sum(known, weights, reconstructed[i])
    return reconstructed


def _decoding_weights(
    coefficients: np.ndarray, rows: list[int], missing: list[int], present: list[int]
) -> list[list[float]]:
    """For each missing output, the weights of the parities `rows` and of the outputs `present` in it.

    They solve C[rows, missing] F[missing] = F_P[rows] - C[rows, present] F[present]. Only this small system
    is solved in float64; the outputs stay in their own datatype.
    """
    if len(missing) == 1:  # the subtraction decoder of section 4.2
        row = coefficients[rows[0]].tolist()
        own = row[missing[0]]
        return [[1 / own, *(-row[i] / own for i in present)]]
    right_side = np.hstack([np.eye(len(rows)), -coefficients[np.ix_(rows, present)]])
    return np.linalg.solve(coefficients[np.ix_(rows, missing)], right_side).tolist()


def _weighted_sum(arrays: Sequence[np.ndarray], weights: Sequence[float], out: np.ndarray) -> None:
    """Writes the sum of weight x array into `out` in one pass over memory; there are two arrays or more."""
    if out.nbytes <= BLOCK_BYTES or not all(array.flags.c_contiguous for array in (*arrays, out)):
        _add_up(arrays, weights, out)
        return
    step = BLOCK_BYTES // out.itemsize
    flat_arrays, flat_out = [array.reshape(-1) for array in arrays], out.reshape(-1)
    for start in range(0, out.size, step):
        block = slice(start, start + step)
        _add_up([array[block] for array in flat_arrays], weights, flat_out[block])


def _add_up(arrays: Sequence[np.ndarray], weights: Sequence[float], out: np.ndarray) -> None:
    total = arrays[0] if weights[0] == 1 else np.multiply(arrays[0], weights[0], out=out)
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        if weight == 1:
            total = np.add(total, array, out=out)
        elif weight == -1:
            total = np.subtract(total, array, out=out)
        else:
            total = np.add(total, array * weight, out=out)


def _downsize(image: np.ndarray, low: np.ndarray | None, out: np.ndarray) -> None:
    """Sums the pixels of `image` (..., H, W) that share a pixel of `out` (..., H / rows, W / columns).

    `low` (..., H / rows, W) holds the sums of rows; it is None where `rows` is 1. Rows lie side by side in
    memory and are quickly added. Then only a part of the pixels are left to be added within their row.
    """
    rows, columns = image.shape[-2] // out.shape[-2], image.shape[-1] // out.shape[-1]
    if low is not None:
        _weighted_sum([image[..., row::rows, :] for row in range(rows)], [1.0] * rows, low)
        image = low
    _weighted_sum([image[..., column::columns] for column in range(columns)], [1.0] * columns, out)


def _grid(k: int) -> tuple[int, int]:
    """Rows and columns of the grid nearest to a square that holds k cells, with no more rows than columns."""
    columns = math.isqrt(k - 1) + 1
    return -(-k // columns), columns


def _check_input(spec: TensorSpec, encoder: str) -> None:
    if not np.issubdtype(spec.dtype, np.floating):
        raise ValueError(
            f"input {spec.name!r} is {spec.datatype}, whose values the {encoder} encoder cannot add up; "
            "it takes FP16, FP32 and FP64"
        )
    if any(size < 0 for size in spec.shape):
        raise ValueError(
            f"input {spec.name!r} has the shape {list(spec.shape)}, where -1 varies between requests, but "
            f"the {encoder} encoder takes queries of one size; declare the input with a fixed shape"
        )
