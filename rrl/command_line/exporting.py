"""`--export` writes report and exports of an earlier run anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from rrl import journal
from rrl.advice import careful_apply
from rrl.command_line.ending import DONE
from rrl.guarding.choice import ToKeep
from rrl.tuning.stop import Output
from rrl.views.exports import print_places, write_views
from rrl.views.summary import summarise
from rrl.views.summary_json import FILE_NAME as SUMMARY
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.target import TargetError
from serving_adapter.target.installed_targets import target_class

LOG_WIDTH = 140  # Where the output is no terminal.


def make_console(on_stderr: bool = False) -> Output:
    """Where all is printed: standard output, or standard error where that is for a script to read."""
    stream = sys.stderr if on_stderr else sys.stdout
    return Output(highlight=False, stderr=on_stderr, width=None if stream.isatty() else LOG_WIDTH)


def print_json(folder: Path) -> None:
    """Prints a run's summary.json on standard output, on one line: several runs make JSON lines."""
    print(json.dumps(json.loads((folder / SUMMARY).read_text(encoding="utf-8"))))


@contextmanager
def saying_found_is_missing(console: Console) -> Iterator[None]:
    """Says why the files of the configuration found are not written."""
    try:
        yield
    except (TargetError, ValueError, OSError) as error:
        console.print(
            f"no files of the configuration found, to go back to: {in_a_sentence(error)}",
            style="yellow",
            markup=False,
        )


def export_again(folder: Path, as_json: bool) -> NoReturn:
    """Writes the exports of an earlier run anew, prints the summary if asked to, and ends the command."""
    try:
        show_again(folder, make_console(on_stderr=as_json))
        if as_json:
            print_json(folder)
    except (ValueError, OSError, TargetError) as error:
        fail(in_a_sentence(error))
    raise SystemExit(DONE)


def show_again(folder: Path, console: Console) -> None:
    """Writes the views of the journal in a folder, asking no target, and says where they are."""
    header, records = journal.read(folder)
    if header.agent == careful_apply.AGENT:
        raise ValueError(
            f"{folder} holds one change that --apply-after-advise made, and no run that tuned: "
            "its changes.log and journal tell all there is"
        )
    found = header.found_config_pbtxt
    target = None if found is None else target_class(header.target).kept(found)
    ending = journal.read_ending(folder)
    kept = None if ending is None else ToKeep(header.space.number(ending.kept), ending.reason)
    summary = summarise(header, records, kept=kept)
    write_views(folder, header, records, summary, target, kept is not None, saying_found_is_missing(console))
    print_places(console, folder)
