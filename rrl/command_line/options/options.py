"""The options of `rrl-tune`: its flags, once they are known to go together."""

from __future__ import annotations

from dataclasses import dataclass

from rrl.command_line.options.flags import TuneFlags
from rrl.command_line.options.option_checks import CHECKS


@dataclass(frozen=True)
class TuneOptions(TuneFlags):
    """Finds the parallelism and batching that serve the present load best, on the running server itself.

    More commands, each with a --help of its own:

    - `rrl-tune init` asks three questions, and writes the YAML that --config takes.
    - `rrl-tune watch` goes on for ever.
    - `rrl-tune what-if` asks an earlier run about another load, limit or objective.
    """

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)
