"""Models from exported files: TorchScript (`.pt`, `.ts`) and torch.export (`.pt2`).

A file says how to compute, not what its inputs are called, so their specification lies beside it:
`model.pt2` with `model.inputs.json` (or `.yaml`), e.g.
`[{"name": "x", "datatype": "FP32", "shape": [3, 32, 32]}]`, shapes without the batch dimension.

What is safe: no pickle of Python objects is ever loaded. TorchScript has a reader of its own that knows
tensors and TorchScript's types only. `torch.export.load` falls back to an unrestricted `pickle` where
weights or sample inputs are not plain tensors (seen in torch 2.13). So it runs here with torch's switch that
forbids that. Archives with pickled custom objects or compiled libraries are refused. Torch also evaluates
some text of a `.pt2` file as Python, which is checked first (`exported_text`). An exported file is still a
program, whose operators may read and write files: serve only files whose origin you trust.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from serving_adapter.json_text import parsed
from serving_adapter.models.branches import has_forks, torchscript
from serving_adapter.models.export_limits import ExportLimits, export_limits
from serving_adapter.models.exported_text import UnsafeText, check_program
from serving_adapter.models.model import Model, ModelError
from serving_adapter.tensors import TensorSpec
from serving_adapter.yaml_text import yaml_of

SUFFIXES = (".pt", ".ts", ".pt2")
SPECIFICATION_EXAMPLE = '[{"name": "x", "datatype": "FP32", "shape": [3, 32, 32]}]'
REFUSED_RECORDS = ("custom_obj_", "opaque_obj_", "data/aotinductor", "data/executorch", "data/mtia")
MAX_TEXT_BYTES = 256 << 20  # of one record of JSON; a model of a hundred thousand nodes has some 100 MB
FORBID_PICKLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def load_exported(path: Path) -> Model:
    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    inputs = _specification(path)
    if path.suffix == ".pt2":
        module, limits = _exported_program(path, inputs)
        return Model(module, limits.inputs, max_rows=limits.max_rows)
    script = _torchscript(path)
    _same_number(path, inputs, len(script.forward.schema.arguments) - 1)  # type: ignore[attr-defined]
    return Model(script, inputs, has_parallel_branches=has_forks(script))


def _torchscript(path: Path) -> torch.jit.ScriptModule:
    try:
        with torchscript(), _opened(path):  # by its name: an open file would be read into memory first
            return torch.jit.load(path, map_location="cpu")
    except ModelError:
        raise
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"{path} is not a TorchScript file, which torch.jit.save makes (a pickled module or state "
            f"dict is not loaded, because unpickling can run any code): {_first_line(error)}"
        ) from None


def _exported_program(path: Path, inputs: tuple[TensorSpec, ...]) -> tuple[nn.Module, ExportLimits]:
    with _opened(path) as file:
        program = _loaded_program(path, file)
    shapes = [
        node.meta["val"].shape
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs
    ]
    _same_number(path, inputs, len(shapes))
    fixed = [spec.name for spec, shape in zip(inputs, shapes, strict=True) if isinstance(shape[0], int)]
    if fixed:
        raise ModelError(
            f"{path} was exported for batches of one size only; export it with an example of 2 rows "
            f'or more and dynamic_shapes={{"{fixed[0]}": {{0: torch.export.Dim.DYNAMIC}}}}'
        )
    try:
        limits = export_limits(inputs, shapes, program.range_constraints)
    except ModelError as error:
        raise ModelError(f"{path} cannot be served: {error}") from None
    module = program.module()
    module.training = False  # such a module is fixed at its export and refuses .eval()
    return module, limits


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """What is checked and what is loaded is one file, whatever takes its name meanwhile.

    ModelError if it was written to meanwhile: what is loaded may be of two models, and not what was checked.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        before = os.fstat(file.fileno())
        yield file
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ModelError(
            f"{path} was written to while it was loaded; write another file and rename it to this one"
        )


def _loaded_program(path: Path, file: BinaryIO) -> torch.export.ExportedProgram:
    """Checks an open file and loads it; `path` is what to call it."""
    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader

        with PT2ArchiveReader(file) as archive:
            records = archive.get_file_names()
            refused = [record for record in records if any(mark in record for mark in REFUSED_RECORDS)]
            if not refused:
                _check_sizes(file)
                for record in records:
                    if record.endswith(".json"):
                        check_program(json.loads(archive.read_bytes(record)))
    except UnsafeText as error:
        raise ModelError(f"{path} is not loaded: {error}") from None
    except RecursionError:
        raise ModelError(f"{path} is not loaded: its program is nested too deeply") from None
    except (ImportError, RuntimeError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{path} is not a torch.export file, which torch.export.save makes (torch 2.8 or newer): "
            f"{_first_line(error)}"
        ) from None
    if refused:
        raise ModelError(
            f"{path} holds pickled objects or compiled code ({refused[0]}), which are not loaded; "
            "export a module of plain tensors"
        )
    try:
        with _pickle_forbidden():
            file.seek(0)
            return torch.export.load(file)
    except Exception as error:
        raise ModelError(f"{path} cannot be loaded without unpickling: {_first_line(error)}") from None


def _check_sizes(file: BinaryIO) -> None:
    """UnsafeText where records are larger than they are in the file, or their text than any model's is."""
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                raise UnsafeText(
                    f"its record {record.filename} is compressed, which torch.export.save never does"
                )
            if record.filename.endswith(".json") and record.file_size > MAX_TEXT_BYTES:
                raise UnsafeText(f"its record {record.filename} has {record.file_size:,} bytes of text")


@contextmanager
def _pickle_forbidden() -> Iterator[None]:
    before = os.environ.get(FORBID_PICKLE)
    os.environ[FORBID_PICKLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORBID_PICKLE]
        else:
            os.environ[FORBID_PICKLE] = before


def _specification(path: Path) -> tuple[TensorSpec, ...]:
    places = [path.with_suffix(f".inputs{suffix}") for suffix in (".json", ".yaml", ".yml")]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ModelError(
            f"{path} has no specification of its inputs beside it; "
            f"write {places[0]} like {SPECIFICATION_EXAMPLE}"
        )
    try:
        text = found.read_text(encoding="utf-8")
        entries = parsed(text) if found.suffix == ".json" else yaml_of(text)
        specs = tuple(_spec(entry) for entry in entries)
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else _first_line(error)
        raise ModelError(
            f"{found} does not specify inputs ({problem}); expected a list like {SPECIFICATION_EXAMPLE}"
        ) from None
    return specs


def _spec(entry: dict[str, Any]) -> TensorSpec:
    return TensorSpec(
        str(entry["name"]),
        str(entry["datatype"]),
        tuple(entry["shape"]),
        **{key: value for key, value in entry.items() if key not in ("name", "datatype", "shape")},
    )


def _same_number(path: Path, inputs: tuple[TensorSpec, ...], taken: int) -> None:
    if len(inputs) != taken:
        raise ModelError(
            f"{path} takes {taken} inputs but its specification lists {len(inputs)}: "
            f"{', '.join(spec.name for spec in inputs)}"
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
