"""Fashion-MNIST as its files have it, and a localization task that is made of its items.

Debian's package `dataset-fashion-mnist` puts four files of the IDX format into `INSTALLED`. Such a file has a
number that says what it holds (4 bytes), the sizes (4 bytes each), then the entries. It may be unpacked.

A localization task asks for a box (left, top, right, bottom), each side a share of the image's. The paper's
are birds (CUB-200); here an item of clothing lies on a noisy ground, at a random place and in a random size.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

INSTALLED = Path("/usr/share/datasets/fashion-mnist")
FILES = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
UBYTE = 0x08  # the type of an IDX file's entries

CANVAS = 56  # pixels a side
ITEM_SIDES = (20, 40)  # pixels, from the smallest to the largest
NOISE = 0.2  # the ground's brightest pixel, where an item's is 1
VISIBLE = 32  # of 255: pixels of an item that count for its box


def folder_of(given: Path | None) -> Path | None:
    """Where all four files are: the given folder, `fashion-mnist` in it, or where they are installed."""
    places = [] if given is None else [given, given / "fashion-mnist"]
    for place in (*places, INSTALLED):
        if all(_file(place, name) is not None for name in FILES.values()):
            return place
    return None


def read(folder: Path) -> dict[str, np.ndarray]:
    """Pixels (N, 28, 28) uint8 and classes (N,) uint8 of both parts; ValueError or OSError if not."""
    arrays = {}
    for part, name in FILES.items():
        path = _file(folder, name)
        assert path is not None, "its folder has it"
        arrays[part] = read_idx(path)
    for part in ("train", "test"):
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
        if x.ndim != 3 or y.shape != (len(x),) or not len(x):
            raise ValueError(
                f"{folder} has images {x.shape} and labels {y.shape} that do not belong together"
            )
    return arrays


def _file(folder: Path, name: str) -> Path | None:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    return None


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes from an IDX file; ValueError where it is none."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UBYTE or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is no IDX file of bytes")
    shape = tuple(np.frombuffer(data, ">u4", data[3], 4).tolist())
    entries = np.frombuffer(data, np.uint8, -1, 4 + 4 * data[3])
    if len(entries) != math.prod(shape):
        raise ValueError(f"{path} is not whole: it has {len(entries)} entries, its head says {shape}")
    return entries.reshape(shape)


def localization(items: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 1, CANVAS, CANVAS) FP32 from 0 to 1 with an item each, and the items' boxes (count, 4).

    `items` are (N, side, side) uint8; they are taken in turns.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, NOISE, (count, 1, CANVAS, CANVAS)).astype(np.float32)
    boxes = np.empty((count, 4), np.float32)
    sides = rng.integers(ITEM_SIDES[0], ITEM_SIDES[1] + 1, count)
    places = rng.uniform(size=(count, 2))
    for i, side in enumerate(sides):
        item = _resized(items[i % len(items)], int(side))
        left, top = (places[i] * (CANVAS - side + 1)).astype(int)
        ground = x[i, 0, top : top + side, left : left + side]
        np.maximum(ground, item.astype(np.float32) / 255, out=ground)
        boxes[i] = np.array([left, top, left, top]) + _visible(item)
    return x, boxes / CANVAS


def _resized(item: np.ndarray, side: int) -> np.ndarray:
    """By the nearest pixel."""
    nearest = np.arange(side) * len(item) // side
    return item[np.ix_(nearest, nearest)]


def _visible(item: np.ndarray) -> list[int]:
    """The box around its visible pixels; all of it where none is."""
    rows, columns = np.nonzero(item >= VISIBLE)
    if not len(rows):
        return [0, 0, len(item), len(item)]
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
