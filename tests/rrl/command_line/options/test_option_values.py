"""What follows from the options of `rrl-tune`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rrl.command_line.options.option_values import with_run_folders
from rrl.command_line.options.options import TuneOptions


@pytest.mark.parametrize("journal_is_there", [True, False])
def test_the_journal_of_an_earlier_run_stands_for_its_folder(tmp_path: Path, journal_is_there: bool) -> None:
    journal = tmp_path / "journal.jsonl"
    if journal_is_there:
        journal.touch()
    folder = tmp_path if journal_is_there else journal
    assert with_run_folders(TuneOptions(resume=journal)) == TuneOptions(resume=folder)
    assert with_run_folders(TuneOptions(export=journal)) == TuneOptions(export=folder)
    assert with_run_folders(TuneOptions(agent_from=journal)) == TuneOptions(agent_from=folder)
    assert with_run_folders(TuneOptions(resume=tmp_path)) == TuneOptions(resume=tmp_path)
