"""What a run writes for TensorBoard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


def test_a_configuration_of_many_lines_is_a_row_of_the_runs_table(tmp_path: Path) -> None:
    of_lines = replace(header(), found_config_pbtxt='name: "a|b"\nmax_batch_size: 4\n', server="triton 2")
    TensorBoardEvents(tmp_path, of_lines, []).close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (event,) = events.Tensors("run/text_summary")
    lines = event.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith(("| ", "|-")) for line in lines)
    assert r'| found_config_pbtxt | name: "a\|b" max_batch_size: 4 |' in lines
