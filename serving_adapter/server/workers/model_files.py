"""The files that models are built from, and whether they are still those that the server started with."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence

from serving_adapter.server.workers.messages import ModelReference

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""A file's number, its size, and when it was written."""


class ModelFiles:
    """The files among the models of a pool; a model of the catalogue or of the user's code has none."""

    def __init__(self, models: Sequence[ModelReference]) -> None:
        self._references = [model.reference for model in models]
        self._stamps: dict[str, Stamp] = {}

    def add(self, models: Sequence[ModelReference]) -> None:
        """Files that the next building is from, too."""
        names = [model.reference for model in models]
        self._references += [name for name in names if name not in self._references]

    def look(self) -> None:
        """To be called before each building of the models; says which file holds something else by now.

        Workers of before had the weights of before. Who asks the same twice may get two answers.
        """
        for reference in self._references:
            stamp = _stamp(reference)
            if stamp is None:
                continue
            if self._stamps.get(reference, stamp) != stamp:
                log.warning(
                    "%s was written since the server built the model from it; workers from now on serve what "
                    "it holds now, under the same version; restart the server where that is not wanted",
                    reference,
                )
            self._stamps[reference] = stamp


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
