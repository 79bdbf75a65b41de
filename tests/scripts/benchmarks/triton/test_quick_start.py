"""What `scripts/bench model-analyzer-quick-start` reads of Model Analyzer, and how it judges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rrl.command_line.options.model_analyzer import read
from rrl.command_line.options.options import TuneOptions
from scripts.benchmarks.triton.quick_start import OURS, START, THEIRS, QuickStartRun, outcome
from scripts.triton_server.model_analyzer import best_of, measured, quick_search_file
from scripts.triton_server.running import RunningTriton

COLUMNS = "Model,Batch,Concurrency,Model Config Path,Instance Group,Max Batch Size,Satisfies Constraints,"
TABLE = f"""\
{COLUMNS}Throughput (infer/sec),p99 Latency (ms)
add_sub,1,16,add_sub_config_3,2:CPU,4,Yes,2100.5,9.1
add_sub,1,64,add_sub_config_3,2:CPU,4,Yes,2400.0,30.2
add_sub,1,2,add_sub_config_default,1:CPU,8,Yes,1500.0,2.0

"""

LOG = """\
[Model Analyzer] Starting quick mode search to find optimal configs
[Model Analyzer] Creating model config: add_sub_config_default
[Model Analyzer] Profiling add_sub_config_default: concurrency=16
[Model Analyzer] Profiling add_sub_config_0: concurrency=2
[Model Analyzer] Existing measurement found for run config. Skipping profile
[Model Analyzer] Done with quick mode search. Gathering concurrency sweep measurements for reports
[Model Analyzer] Profiling add_sub_config_0: concurrency=1
"""


def test_the_best_variant_has_the_highest_throughput() -> None:
    assert best_of(TABLE) == ("add_sub_config_3", 64, 2400.0)


def test_measurements_of_the_search_are_told_from_those_for_the_report() -> None:
    assert measured(LOG) == (2, 3)


def test_the_file_is_one_that_our_command_takes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        server = RunningTriton(process, "127.0.0.1:1", "127.0.0.1:2", "http://127.0.0.1:3/metrics", tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(quick_search_file(server, tmp_path, "add_sub", tmp_path), encoding="utf-8")
    options = TuneOptions(**read(config).values)
    assert (options.model, options.target, options.metrics_url) == (
        "add_sub",
        server.address,
        server.metrics_url,
    )


@pytest.mark.parametrize(
    ("ours", "measurements", "failed", "holds"),
    [
        (100.0, 9, 0, True),
        (98.0, 9, 0, True),
        (90.0, 9, 0, False),
        (120.0, 10, 0, False),
        (120.0, 9, 1, False),
    ],
)
def test_as_good_in_fewer_measurements_than_its_search_without_a_failure(
    ours: float, measurements: int, failed: int, holds: bool
) -> None:
    kept = QuickStartRun({"instances": 2}, measurements, 60.0, failed)
    found = {OURS: kept, THEIRS: QuickStartRun({"instances": 3}, 20, 90.0, search=10)}
    per_s = {OURS: {4: [ours, ours, 1.0]}, THEIRS: {4: [100.0, 100.0, 1.0]}, START: {4: [50.0] * 3}}
    result = outcome(found, per_s, is_theirs=True)
    assert result["ratio"] == pytest.approx(ours / 100)
    assert result["holds"] is holds
