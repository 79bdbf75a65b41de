"""The searches for the capacity, before a run and after it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rrl.command_line.embedded.capacity_search import SHARE_TUNED_AT, before_run
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.embedded.embedded_settings import EmbeddedSettings
from rrl.journal import Journal
from rrl.views import capacity_found
from tests.support.runs.tuned_runs import header, simulated


def write(folder: Path, name: str, level_per_s: float) -> None:
    path = capacity_found.path_of(folder, name)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"level": level_per_s, "slo_p95_ms": 50.0, "confirmed": True}))


def test_a_resumed_run_knows_what_its_start_bears_and_not_what_it_will_leave(tmp_path: Path) -> None:
    write(tmp_path, capacity_found.START, 100.0)
    write(tmp_path, capacity_found.KEPT, 140.0)
    embedded = Embedded(tmp_path, EmbeddedSettings("noop"))
    begun = replace(header(simulated()), slo_p95_ms=50.0)
    Journal.create(tmp_path, begun).close()
    before_run(embedded, begun, None, Console(quiet=True))
    assert embedded.settings.rate_per_s == pytest.approx(100.0 * SHARE_TUNED_AT)
    borne = capacity_found.read(tmp_path)
    assert borne is not None
    assert (borne.start_per_s, borne.kept_per_s) == (100.0, None)
    assert borne.to_json() == {
        "start_per_s": 100.0,
        "left_per_s": None,
        "slo_p95_ms": 50.0,
        "confirmed": True,
    }


class Searched(Embedded):
    """Finds what a test says, and nothing is sent."""

    def find_capacity(self, name: str, slo_p95_ms: float, window_s: float) -> dict[str, Any]:
        return {"level": 80.0, "slo_p95_ms": slo_p95_ms, "confirmed": True}


def test_what_was_found_in_a_folder_without_a_journal_is_searched_anew(tmp_path: Path) -> None:
    """As after a run that ended there, as its start bore no load within a lower limit."""
    write(tmp_path, capacity_found.START, 0.0)
    embedded = Searched(tmp_path, EmbeddedSettings("noop"))
    before_run(embedded, replace(header(simulated()), slo_p95_ms=500.0), None, Console(quiet=True))
    assert embedded.settings.rate_per_s == pytest.approx(80.0 * SHARE_TUNED_AT)
