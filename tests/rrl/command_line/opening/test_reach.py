"""What a killed run left on a server is put right before the next begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from envs.target_claim import restored
from rrl.tuning.restore import RestorePoint
from serving_adapter.target import TargetError


def test_what_cannot_be_put_back_is_told_with_what_to_do(state_home: Path) -> None:
    class Refuses:
        model, server, started_s = "m", "", None

        def configuration(self) -> dict[str, int]:
            return {"instances": 1, "max_batch_size": 4}

        def restore(self, found: dict[str, int], text: str = "") -> None:
            raise TargetError("model 'm' has no knob max_batch_size")

    killed = RestorePoint("box.invalid:1", "m")
    found, explored = {"instances": 1, "max_batch_size": 8}, {"instances": 1, "max_batch_size": 4}
    killed.claim(found)
    killed.changing(found, explored)
    state = killed.path.read_text()
    killed.release()
    killed.path.write_text(state)
    with pytest.raises(TargetError) as caught:
        restored(RestorePoint("box.invalid:1", "m"), Refuses(), Console(quiet=True))  # type: ignore[arg-type]
    said = str(caught.value)
    assert "an earlier run did not end cleanly here" in said
    assert "has no knob max_batch_size" in said
    assert f"remove {killed.path}" in said
    assert killed.path.exists()
