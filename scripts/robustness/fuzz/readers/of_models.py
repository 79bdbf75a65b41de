"""The readers of models' files: exported programs, the text in them, and the model store's cache folder."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

import sympy  # type: ignore[import-untyped]

from serving_adapter.model_store.tiers import cache_folder
from serving_adapter.model_store.tiers.disk import Disk
from serving_adapter.model_store.tiers.eviction import LeastRecentlyUsed
from serving_adapter.model_store.tiers.host_memory import fill, place
from serving_adapter.model_store.weights_file import read_safetensors_header
from serving_adapter.models.exported import load_exported
from serving_adapter.models.exported_text import check_expression, check_guard

INPUTS = [{"name": "x", "datatype": "FP32", "shape": [4]}]
CACHE_BYTES = 1 << 20


def weights(data: bytes) -> None:
    """The header is refused, or the tensors it tells of are read where the file has them all."""
    stream = io.BytesIO(data)
    header = read_safetensors_header(stream)
    if not data.startswith(header.raw):
        raise AssertionError("the header's bytes are not the file's")
    header.check_size(len(data))
    if header.data_bytes != len(data) - len(header.raw):
        raise AssertionError("the tensors are not the rest of the file")
    fill(stream, header, place(header.tensors, 1 << 10)).close()


def exported(data: bytes) -> None:
    """A `.pt2` file, as the server loads it."""
    with tempfile.TemporaryDirectory(prefix="rrl-fuzz-") as folder:
        path = Path(folder) / "model.pt2"
        path.write_bytes(data)
        path.with_suffix(".inputs.json").write_text(json.dumps(INPUTS))
        load_exported(path)


def expression(data: bytes) -> None:
    """What passes for arithmetic is worked out by what torch gives it to, and soon."""
    text = data.decode("utf-8", errors="surrogateescape")
    with contextlib.suppress(ValueError):
        check_guard(text)
    check_expression(text)
    with contextlib.suppress(Exception):  # it may be arithmetic that makes no sense
        sympy.sympify(text)


def manifest(data: bytes) -> None:
    """A store starts whatever lies in its cache, and finds no model that has no file."""
    with tempfile.TemporaryDirectory(prefix="rrl-fuzz-") as folder:
        cache = Path(folder)
        place_of_it = cache / cache_folder.MODELS / "safetensors" / "a@1.json"
        place_of_it.parent.mkdir(parents=True)
        place_of_it.write_bytes(data)
        blob = cache / cache_folder.BLOBS / ("ab" * 32)
        blob.parent.mkdir()
        blob.write_bytes(b"weights")
        cache_folder.claim(cache)
        disk = Disk(cache, CACHE_BYTES, LeastRecentlyUsed())
        for entry in disk.entries.values():
            disk.open(entry).close()
