"""The short form of the soak, and that it tells what grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.robustness import soak
from scripts.robustness.process_usage import HeldByProcesses
from scripts.robustness.tuner_watch import MOST_GROWTH_BYTES, MOST_MORE, HeldRow, TunerWatch

SOME = HeldByProcesses(memory_bytes=100 << 20, descriptors=10, threads=5, processes=2)


def test_some_seconds_of_load_changes_and_tuning_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RRL_STORE", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "set again by the run")
    monkeypatch.setattr(soak, "LOOKS", 2)
    figures = tmp_path / "soak.json"
    assert soak.run(soak.Options(minutes=0.15, warm_up_s=1.0, out=figures))
    assert '"what": "memory of the front"' in figures.read_text()


@pytest.mark.parametrize(
    ("end", "grown"),
    [
        (SOME, []),
        (
            SOME._replace(memory_bytes=SOME.memory_bytes + MOST_GROWTH_BYTES + (1 << 20)),
            ["memory of the front"],
        ),
        (SOME._replace(descriptors=10 + MOST_MORE + 1), ["descriptors of the front"]),
        (SOME._replace(threads=5 + MOST_MORE + 1), ["threads of the front"]),
        (SOME._replace(processes=3), ["processes of the front"]),
    ],
)
def test_what_grows_is_told(end: HeldByProcesses, grown: list[str]) -> None:
    assert [row.what for row in soak.held_rows("front", SOME, end) if not row.holds] == grown


def test_a_journal_whose_intervals_grow_is_told(tmp_path: Path) -> None:
    watch = TunerWatch(tmp_path)
    watch.samples = [(100, 100_000, SOME), (200, 200_000, SOME), (1000, 3_000_000, SOME)]
    assert "journal" in [row.what for row in watch.rows() if not row.holds]
    watch.samples[-1] = (1000, 1_000_000, SOME)
    assert "journal" in [row.what for row in watch.rows() if row.holds]


def test_where_looks_at_the_tuner_lack_it_is_judged_by_those_there_are(tmp_path: Path) -> None:
    watch = TunerWatch(tmp_path)
    watch._exit_status, watch.intervals = 0, 30
    assert all(row.holds for row in watch.rows())
    grown = SOME._replace(memory_bytes=SOME.memory_bytes + (1 << 30))
    watch.samples = [(10, 1000, SOME)]
    assert all(row.holds for row in watch.rows())
    watch.samples.append((20, 2000, grown))
    assert [row.what for row in watch.rows() if not row.holds] == ["memory of the tuner"]


def test_a_tuner_that_did_not_run_is_told(tmp_path: Path) -> None:
    assert not all(row.holds for row in TunerWatch(tmp_path).rows())
    assert HeldRow("x", 1, 1, 1, "").holds
