"""A p95 limit on a stock Triton for its users' own requests: a tap before it tells what they see."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rrl import journal
from rrl.command_line import main
from tests.support.servers.triton_served import Served


@pytest.fixture
def tapped(triton, serve) -> Iterator[Served]:
    """The model `sleep` behind a tap."""
    command = [sys.executable, "-m", "serving_adapter.tap.command_line", "--target", triton.address]
    command += ["--target-metrics-url", triton.metrics_url, "--listen", ":0", "--metrics-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = re.search(r" on (\S+), metrics on (\S+)$", process.stdout.readline().strip())
        assert ready is not None
        yield Served(ready[1], ready[2], "sleep")
        process.terminate()


def test_a_limit_is_watched_through_a_tap(tapped, load, tmp_path):
    folder = tmp_path / "run"
    target = ("--target", tapped.address, "--metrics-url", tapped.metrics_url, "--model", "sleep")
    options = ("--objective", "strict-slo", "--slo-p95-ms", "200", "--agent", "sweep", "--intervals", "4")
    knobs = ("--knobs", "instances=1,2", "max_batch_size=1,8", "--interval-s", "0.5", "--settle-s", "0.1")
    with load(tapped, rate_per_s=30) as sending, pytest.raises(SystemExit) as ended:
        main([*target, *options, *knobs, "--out", str(folder)])
    assert ended.value.code == 0
    assert sending.failed == {}
    learned = [each.measurement.latency for each in journal.read(folder)[1] if each.learned]
    assert learned
    assert all(0 < latency.p50_ms <= latency.p95_ms for latency in learned)
