"""What a run writes for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from rrl.views.tensorboard_events import TensorBoardEvents
from tests.rrl.test_journal import header, record


def test_only_a_resumed_run_replaces_events_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    kept, events = folder / "notes.txt", folder / "events.out.tfevents.1"
    kept.touch()
    events.touch()
    TensorBoardEvents(tmp_path, header(), []).close()
    assert events.exists()
    TensorBoardEvents(tmp_path, header(), [record()]).close()
    assert kept.exists()
    assert not events.exists()
