"""Compiles functions with numba, and keeps the result for the next process where it can be written and read.

What is kept saves a start some seconds, and is worth no failure. So functions are compiled anew where a
folder is read-only, where the disk is full and where a power cut has torn a file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

log = logging.getLogger(__name__)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function, to be compiled when it is called first; its threads do not wait for the interpreter."""
    dispatcher = numba.njit(nogil=True, **options)(function)
    try:
        dispatcher._cache = CompiledFiles(function)
    except RuntimeError:  # there is no folder for it, beside the module or in the user's home
        _note_that_nothing_is_kept()
    return dispatcher


class CompiledFiles(FunctionCache):
    """numba's files of one function, none of which has to be there."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = FilesWithKeys(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def load_overload(self, *arguments: Any) -> Any:
        """None for what is not there, or damaged: what is damaged is forgotten."""
        try:
            return super().load_overload(*arguments)
        except Exception:  # whatever unpickling made of it
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, *arguments: Any) -> None:
        try:
            super().save_overload(*arguments)
        except Exception:  # as of a full disk, or of a damaged index that cannot be written anew
            _note_that_nothing_is_kept()


class FilesWithKeys(IndexDataCacheFile):
    """Each file says what it holds.

    numba numbers the files, and only the index says for which types of arguments each is. Two processes
    that compile at the same time can take the same number, and what is run then was compiled for others.
    """

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: Any) -> Any:
        found = super().load(key)
        if found is None or found[:2] != (self._source_stamp, key):
            return None
        return found[2]


@cache
def _note_that_nothing_is_kept() -> None:
    log.warning(
        "what is compiled cannot be kept, so every start compiles it anew: set NUMBA_CACHE_DIR to a folder "
        "of your own that can be written to"
    )
