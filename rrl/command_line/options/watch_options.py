"""The options of `rrl-tune watch`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from rrl.command_line.options.option_values import journal_tells_rest, models_of
from rrl.command_line.options.options import TuneOptions
from rrl.journal import has_begun


@dataclass(frozen=True)
class WatchOptions(TuneOptions):
    """Keeps the configuration right for ever: tunes, then changes only what pays, and is safe in silence."""

    watches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.advise:
            raise ValueError("watch changes what is in force: leave --advise away, or rrl-tune --advise")
        if len(models_of(self)) > 1 and not self.jointly:
            raise ValueError("watch keeps several models together: add --jointly, or start one for each")
        if self.target is None and not journal_tells_rest(self):
            raise ValueError(
                "no server is named that watch is to keep right: give --target HOST:PORT, or target in the "
                "file of --config"
            )


def going_on(options: TuneOptions) -> TuneOptions:
    """The options of a watch, which goes on with the run in its folder where there is one.

    That run's journal tells what its agent started from.
    """
    if not options.watches or options.out is None or not has_begun(options.out):
        return options
    return dataclasses.replace(options, out=None, agent_from=None, resume=options.out)
