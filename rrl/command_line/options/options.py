"""The options of `rrl-tune`: its flags, once they are known to go together."""

from __future__ import annotations

from dataclasses import dataclass

from rrl.command_line.options.flags import TuneFlags
from rrl.command_line.options.option_checks import CHECKS


@dataclass(frozen=True)
class TuneOptions(TuneFlags):
    """Finds the parallelism and batching that serve the present load best, on the running server itself."""

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)
