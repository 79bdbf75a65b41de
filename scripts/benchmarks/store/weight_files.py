"""Weight files of the sizes of TrIMS's Tables 3 and 4, filled with random numbers; and their page cache."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

MIB = 1 << 20
CHUNK_BYTES = 16 * MIB
MAX_WEIGHT = 0.02  # keeps the answers of the networks finite, and far from denormal numbers
SPREAD = 1_000  # the largest weight of a synthetic model over its smallest
SMALL_TENSOR_ITEMS = 256  # a bias, or a part of batch normalisation
MAX_CACHED_SHARE = 0.01  # of a file that counts as forgotten

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

Shapes = Mapping[str, tuple[int, ...]]


class PaperModel(NamedTuple):
    """A row of Table 3 or 4: its tensors ("layers") and its megabytes of weights ("MWMF")."""

    name: str
    tensors: int
    mib: float


TABLE_3 = tuple(
    PaperModel(*row)
    for row in (
        ("AlexNet", 16, 238),
        ("GoogLeNet", 116, 27),
        ("CaffeNet", 16, 233),
        ("RCNN-ILSVRC13", 16, 221),
        ("DPN68", 361, 49),
        ("DPN92", 481, 145),
        ("Inception-v3", 472, 92),
        ("Inception-v4", 747, 164),
        ("InceptionBN-v2", 416, 129),
        ("InceptionBN-v3", 416, 44),
        ("Inception-ResNet-v2", 1102, 214),
        ("LocationNet", 514, 285),
        ("NIN", 24, 29),
        ("ResNet101", 526, 170),
        ("ResNet101-v2", 522, 171),
        ("ResNet152", 777, 231),
        ("ResNet152-11k", 769, 311),
        ("ResNet152-v2", 761, 231),
        ("ResNet18-v2", 99, 45),
        ("ResNet200-v2", 1009, 248),
        ("ResNet269-v2", 1346, 391),
        ("ResNet34-v2", 179, 84),
        ("ResNet50", 268, 98),
        ("ResNet50-v2", 259, 98),
        ("ResNeXt101", 526, 170),
        ("ResNeXt101-32x4d", 522, 170),
        ("ResNeXt26-32x4d", 147, 59),
        ("ResNeXt50", 271, 96),
        ("ResNeXt50-32x4d", 267, 96),
        ("SqueezeNet-v1.0", 52, 4.8),
        ("SqueezeNet-v1.1", 52, 4.8),
        ("VGG16", 32, 528),
        ("VGG16-SOD", 32, 514),
        ("VGG16-SOS", 32, 513),
        ("VGG19", 38, 549),
        ("WRN50-v2", 267, 264),
        ("Xception", 236, 88),
    )
)
TABLE_4 = tuple(  # without the two that are in Table 3 too
    PaperModel(*row)
    for row in (
        ("AlexNet-S2", 16, 770),
        ("VGG16-S2", 32, 1704),
        ("AlexNet-S3", 16, 1694),
        ("AlexNet-S4", 16, 3010),
        ("VGG16-S3", 32, 3664),
        ("VGG16-S4", 32, 6408),
    )
)
MODELS = {model.name: model for model in TABLE_3 + TABLE_4}


def synthetic_shapes(model: PaperModel, scale: float = 1.0) -> dict[str, tuple[int, ...]]:
    """As many tensors as the paper counts, of its bytes times `scale`.

    Every second is a small one, every fifth a large one in deep networks, whose normalisations have four
    small ones for each convolution. The large ones grow by the same factor from the first to the last.
    """
    large = max(1, model.tensors // (2 if model.tensors < 100 else 5))
    small = model.tensors - large
    items = max(model.tensors, int(model.mib * scale * MIB / 4))
    small_items = max(1, min(SMALL_TENSOR_ITEMS, items // (2 * model.tensors)))
    shares = np.geomspace(1, SPREAD, large)
    sizes = np.maximum(1, (items - small * small_items) * shares / shares.sum()).astype(int)
    shapes: dict[str, tuple[int, ...]] = {f"layers.{i}.weight": (int(size),) for i, size in enumerate(sizes)}
    return shapes | {f"small.{i}": (small_items,) for i in range(small)}


def write_weights(path: Path, shapes: Shapes, seeds: int | Sequence[int] = 0) -> int:
    """Writes a safetensors file of random float32 and returns its bytes; a seed for all tensors or each."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        size_bytes = 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size_bytes]}
        end += size_bytes
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned, as the library writes them
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for i, (name, shape) in enumerate(shapes.items()):
            middle = 0.5 if not name.endswith("running_var") else -1.0  # a variance is positive
            rng = np.random.default_rng([i, seeds if isinstance(seeds, int) else seeds[i]])
            left = math.prod(shape)
            while left:
                part = rng.random(min(left, CHUNK_BYTES // 4), dtype=np.float32)
                file.write(((part - middle) * (2 * MAX_WEIGHT)).data)
                left -= len(part)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size


def write_pickled(weights: Path) -> Path:
    """The same weights as `torch.save` writes them, beside the safetensors file."""
    pickled = weights.with_suffix(".pt")
    torch.save(load_file(weights), pickled)
    return pickled


def forget(path: Path, *, others_map_it: bool = False) -> None:
    """Has the page cache forget a file, so that it is read from the disk.

    RuntimeError where it stays in memory, as in a file system that has no disk. What others map stays, too.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share(path)
    if share > MAX_CACHED_SHARE and not others_map_it:
        raise RuntimeError(
            f"{path} stays in memory ({share:.0%} of it), so it cannot be read from the disk; name a folder "
            "on a disk in TMPDIR"
        )


def cached_share(path: Path) -> float:
    """Which share of a file's pages the page cache holds."""
    if not path.stat().st_size:
        return 0.0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
        failed = _libc.mincore(data.ctypes.data, len(data), pages.ctypes.data)
        del data  # the map cannot be closed before
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot ask what is cached of {path}: {os.strerror(number)}")
    return float((pages & 1).mean())


def warm(path: Path) -> None:
    """Reads a file into the page cache."""
    buffer = bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def touch(tensors: Iterable[Tensor]) -> float:
    """Reads every byte of float32 tensors."""
    return sum(float(tensor.sum()) for tensor in tensors)
