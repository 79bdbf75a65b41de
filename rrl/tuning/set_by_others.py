"""That somebody else changed what a run tunes: how it is said, and what a run may do about it."""

from __future__ import annotations

from typing import Literal

from rrl.knobs import in_words
from rrl.space import Configuration

OnForeignChange = Literal["adopt", "restore", "stop"]


class TakenOver(Exception):
    """Another client's configuration is in force, and the run goes on from there."""


class LeftToOthers(Exception):
    """What another client has set is to stay in force, and the run ends; the text says why."""


class SetByOthers(Exception):
    """Another client has put this in force since the run looked last."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = dict(configuration)
        super().__init__(f"another client has set {in_words(configuration)}")
