"""`--export` writes report and exports of an earlier run anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from rrl import journal
from rrl.advice import careful_apply
from rrl.command_line.ending import DONE
from rrl.guarding.choice import ToKeep
from rrl.tuning.stop import Output
from rrl.views.exports import print_places, write_views
from rrl.views.summary import summarise
from serving_adapter.options import fail, in_a_sentence
from serving_adapter.target.installed_targets import target_class

LOG_WIDTH = 140  # Where the output is no terminal.


def make_console(on_stderr: bool = False) -> Output:
    """Where all is printed: standard output, or standard error where that is for a script to read."""
    stream = sys.stderr if on_stderr else sys.stdout
    return Output(highlight=False, stderr=on_stderr, width=None if stream.isatty() else LOG_WIDTH)


def export_again(folder: Path) -> NoReturn:
    """Writes the exports of an earlier run anew, and ends the command."""
    try:
        show_again(folder)
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    raise SystemExit(DONE)


def show_again(folder: Path) -> None:
    """Writes the views of the journal in a folder, asking no target, and says where they are."""
    header, records = journal.read(folder)
    if header.agent == careful_apply.AGENT:
        raise ValueError(
            f"{folder} holds one change that --apply-after-advise made, and no run that tuned: "
            "its changes.log and journal tell all there is"
        )
    found = header.found_config_pbtxt
    kept = None if found is None else target_class(header.target).kept(found)
    ending = journal.read_ending(folder)
    left = None if ending is None else ToKeep(header.space.number(ending.kept), ending.reason)
    summary = summarise(header, records, left=left)
    write_views(folder, header, records, summary, kept, ended=left is not None)
    print_places(make_console(), folder)
