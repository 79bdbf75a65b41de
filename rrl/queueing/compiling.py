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
from numba.core.caching import FunctionCache

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


@cache
def _note_that_nothing_is_kept() -> None:
    log.warning(
        "what is compiled cannot be kept, so every start compiles it anew: set NUMBA_CACHE_DIR to a folder "
        "of your own that can be written to"
    )
