"""Programs that nobody has changed, with the store: `safetensors.safe_open` reads files through it.

`safetensors.torch.load_file` and `torch.load` of a safetensors file call `safe_open`, as do the libraries
that load models. So this one function is replaced, once a program that `rrl-store run` started imports
`safetensors`.

What it answers is what the original does. Tensors may be written to: what is written stays in the process.
Where the store cannot serve a file, or sharing it does not pay, the original reads it, and nothing is said.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

LIBRARY = "safetensors"
FRAMEWORKS = ("pt", "torch", "pytorch")  # as safe_open calls torch


def install() -> None:
    """Has `safe_open` replaced when the program imports it; imports nothing itself."""
    if LIBRARY in sys.modules:
        replace_safe_open(sys.modules[LIBRARY])
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(LIBRARY, replace_safe_open))


def replace_safe_open(library: ModuleType) -> None:
    """Replaces it in the library, before others take it from there; does nothing the second time."""
    original = vars(library)["safe_open"]
    if not hasattr(original, "__wrapped__"):
        described = {"__wrapped__": original, "__module__": original.__module__, "__doc__": original.__doc__}
        vars(library)["safe_open"] = _SafeOpen(original.__name__, (), described)


class _SafeOpen(type):
    """The type of what stands in for `safe_open`: a class as that, for annotations and `isinstance`."""

    __wrapped__: Any

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        found = _to_share(*arguments, **named)
        file = cls.__wrapped__(*arguments, **named)
        return file if found is None else SharedFile(file, found)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (SharedFile, cls.__wrapped__))


class FileToOpen(NamedTuple):
    """A file that is about to be opened: where it is, wherever the process goes, and what `stat` says."""

    path: Path
    status: os.stat_result


def _to_share(
    filename: Any = None, framework: Any = None, device: Any = "cpu", *_: Any, **__: Any
) -> FileToOpen | None:
    """The file, if its tensors are wanted by torch in host memory; None also where the library will fail."""
    if framework not in FRAMEWORKS or str(device) != "cpu":
        return None
    try:
        path = Path(os.fsdecode(filename)).absolute()
        return FileToOpen(path, path.stat())
    except (OSError, ValueError, TypeError):
        return None


class SharedFile:
    """An open weight file whose tensors come from the store, and all else from the library's own object."""

    def __init__(self, file: Any, found: FileToOpen) -> None:
        self._file, self._found = file, found
        self._shared: dict[str, Any] | None = None
        self._was_asked = False

    def __enter__(self) -> SharedFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> Any:
        """As the original: a tensor, or its error where there is none of that name."""
        shared = self._tensors()
        return self._file.get_tensor(name) if name not in shared else shared[name].detach()

    def get_tensors(self) -> dict[str, Any]:
        """As the original, where the installed library has it: all tensors by their names."""
        shared = self._tensors()
        return {name: tensor.detach() for name, tensor in shared.items()} or self._file.get_tensors()

    def get_slice(self, name: str) -> Any:
        """As the original: something to take parts of a tensor from."""
        shared = self._tensors()
        part = self._file.get_slice(name)
        return part if name not in shared else SharedSlice(part, shared[name])

    def _tensors(self) -> dict[str, Any]:
        """The tensors in the store; none if it cannot serve them."""
        if not self._was_asked:
            self._was_asked = True
            self._shared = _from_store(self._found)
        return self._shared or {}


class SharedSlice:
    """A tensor of the store, of which parts are taken."""

    def __init__(self, part: Any, tensor: Any) -> None:
        self._part, self._tensor = part, tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> Any:
        return self._tensor[index].detach().contiguous()


def _from_store(found: FileToOpen) -> dict[str, Any] | None:
    """The file's tensors in memory that may be written to; None where the original is to read them.

    The original has the file as it was when it was opened, so it also reads one that was replaced since.
    """
    if _Unavailable.in_process == os.getpid():
        return None
    try:
        from serving_adapter.model_store.errors import StoreUnavailable
        from serving_adapter.model_store.torch_side.tensors import shared_file
    except Exception as error:  # of the program's Python, which may have a part of the project only
        log.debug("the model store cannot be used: %s", error)
        return None
    try:
        return shared_file(found.path, copies_on_write=True, as_found=found.status)
    except StoreUnavailable as error:
        _Unavailable.in_process = os.getpid()
        log.debug("the model store is not used: %s", error)
    except Exception as error:
        log.debug("%s is read without the model store: %s", found.path, error)
    return None


class _Unavailable:
    """The process in which no store could be had: it is not asked for again and again."""

    in_process = 0


class _WhenImported(MetaPathFinder):
    """Has something done to a module once it has been imported, and finds none itself."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with contextlib.suppress(Exception):  # of a library that has no safe_open
                self._action(module)

        with contextlib.suppress(AttributeError):  # a loader of another kind
            loader.exec_module = exec_module
