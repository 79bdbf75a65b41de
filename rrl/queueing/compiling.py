"""Compiles functions with numba, and keeps the result for the next process where it can be written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import numba

log = logging.getLogger(__name__)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function, to be compiled when it is called first; its threads do not wait for the interpreter."""
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # numba finds no folder for it, beside the module or in the user's home
        _note_that_nothing_is_kept()
        return numba.njit(nogil=True, **options)(function)


@cache
def _note_that_nothing_is_kept() -> None:
    log.warning(
        "what is compiled cannot be kept, so every start compiles it anew: set NUMBA_CACHE_DIR to a folder "
        "of your own that can be written to"
    )
