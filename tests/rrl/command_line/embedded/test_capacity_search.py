"""The searches for the capacity, before a run and after it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rrl.command_line.embedded.capacity_search import SHARE_TUNED_AT, before_run
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.embedded.embedded_settings import EmbeddedSettings
from rrl.views import capacity_found
from tests.support.runs.tuned_runs import header, simulated


def write(folder: Path, name: str, level_per_s: float) -> None:
    path = capacity_found.path_of(folder, name)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"level": level_per_s, "slo_p95_ms": 50.0, "confirmed": True}))


def test_a_resumed_run_knows_what_its_start_bears_and_not_what_it_will_leave(tmp_path: Path) -> None:
    write(tmp_path, capacity_found.START, 100.0)
    write(tmp_path, capacity_found.LEFT, 140.0)
    embedded = Embedded(tmp_path, EmbeddedSettings("noop"))
    before_run(embedded, replace(header(simulated()), slo_p95_ms=50.0), None, Console(quiet=True))
    assert embedded.settings.rate_per_s == pytest.approx(100.0 * SHARE_TUNED_AT)
    borne = capacity_found.read(tmp_path)
    assert borne is not None
    assert (borne.start_per_s, borne.left_per_s) == (100.0, None)
