"""Files in which Fashion-MNIST comes, of forty made-up items each."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from serving_adapter.parity.fashion_mnist import FILES

ITEMS = 40


def idx(array: np.ndarray) -> bytes:
    """A file of the IDX format."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_fashion_files(folder: Path) -> None:
    """Each item is a bright rectangle, the larger the higher its class."""
    labels = (np.arange(ITEMS) % 10).astype(np.uint8)
    pixels = np.zeros((ITEMS, 28, 28), np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[4 : 10 + label, 7 : 10 + label] = 255
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(FILES.values(), (pixels, labels, pixels, labels), strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
