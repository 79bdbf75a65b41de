"""`rrl-tune --bench`: a server that runs already, under a load of the run's own."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rrl.command_line.ending import LIMIT_BROKEN
from rrl.journal import read
from serving_adapter.server.metrics.page_server import open_page
from tests.support.runs.running_command import QUICK, answered, exit_code, in_force
from tests.support.servers.running_server import RunningServer, start

LONGER = ("--interval-s", 0.6)  # each interval has answers
BUCKET_RATIO = 1.08


@pytest.fixture(scope="module")
def idle() -> Iterator[RunningServer]:
    """A server that nobody uses."""
    server = start("--model", "sleep", "--model-option", "ms=20", "--intra-op-threads", 1)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


def test_a_server_without_users_is_tuned_under_a_load_of_ones_own(
    idle: RunningServer, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("requests.json").write_text(json.dumps({"data": [{"x": [1.0] * 16}, {"x": [2.0] * 16}]}))
    load = ("--bench", "--model", "sleep", "--rate", 20, "--input-data", "requests.json")
    run = ("--target", idle.address, *load, "--agent", "random", "--intervals", 3, "--out", "run", *QUICK)
    assert exit_code(*run) == 0
    said = capsys.readouterr().out
    assert f"serving sleep on {idle.address} at 20/s" in said
    header, records = read(tmp_path / "run")
    assert header.load is not None
    assert header.load["bench"] is True
    assert sum(r.kind == "tune" and r.counted for r in records) == 3
    report = json.loads((tmp_path / "run" / "load.json").read_text())
    assert report["failed"] == {}
    assert report["sent"] > 0
    assert not list(state_home.iterdir())
    left = in_force(idle.address)
    assert {k: left[k] for k in header.space.names} in [r.configuration for r in records]
    assert exit_code("--resume", "run", "--intervals", 4) == 0
    assert f"serving sleep on {idle.address} at 20/s" in capsys.readouterr().out
    before = answered(idle.address)
    assert answered(idle.address) == before, "the load is over with the run"


@pytest.fixture
def page_without_percentiles(idle: RunningServer) -> Iterator[str]:
    """The server's page without what a stock Triton does not tell."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with urllib.request.urlopen(f"{idle.metrics_url}?{environ['QUERY_STRING']}") as page:
            lines = page.read().splitlines(keepends=True)
        start_response("200 OK", [("content-type", "text/plain; version=0.0.4")])
        return [line for line in lines if b"rrl_request_" not in line]

    server = open_page(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_a_limit_is_kept_by_what_the_loads_clients_saw_where_the_server_tells_no_percentiles(
    idle: RunningServer, page_without_percentiles: str, tmp_path: Path, state_home: Path
) -> None:
    load = ("--bench", "--model", "sleep", "--rate", 20, "--objective", "goodput", "--slo-p95-ms", 300)
    run = ("--target", idle.address, "--metrics-url", page_without_percentiles, *load)
    assert exit_code(*run, "--agent", "random", "--intervals", 3, "--out", "run", *QUICK, *LONGER) == 0
    learned = [record.measurement.latency for record in read(tmp_path / "run")[1] if record.learned]
    assert learned
    for latency in learned:
        assert 20 / BUCKET_RATIO <= latency.p50_ms <= latency.p95_ms, "the model sleeps for 20 ms"


def test_a_shape_that_the_model_does_not_take_ends_the_run_in_a_sentence(
    idle: RunningServer, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--bench", "--model", "sleep", "--rate", 20, "--shape", "y:16")
    assert exit_code("--target", idle.address, *load, "--intervals", 3, "--out", "run", *QUICK) == 1
    assert "model 'sleep' has no input 'y' to give a shape to" in capsys.readouterr().err
    assert not list(state_home.iterdir())


def test_a_load_of_its_own_needs_a_server_and_no_observer(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--bench") == 2
    assert "give --target HOST:PORT" in capsys.readouterr().err
    assert exit_code("--bench", "--advise", "--target", "localhost:1") == 2
    assert "leave --bench away, or tune" in capsys.readouterr().err


def test_each_closed_loop_has_its_best_in_one_command(
    idle: RunningServer, tmp_path: Path, state_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load = ("--bench", "--model", "sleep", "--concurrency", "1,3", "--objective", "throughput")
    run = ("--target", idle.address, *load, "--shape", "x:16", "--intervals", 3, "--out", "run", *QUICK)
    assert exit_code(*run, "--json", "--exit-code") in (0, 3)
    printed = capfd.readouterr()
    assert "the best for each concurrency" in printed.err
    for level, text in zip((1, 3), printed.out.splitlines(), strict=True):
        folder = tmp_path / "run" / f"concurrency-{level}"
        assert json.loads(text) == json.loads((folder / "summary.json").read_text())
        header, records = read(folder)
        assert header.concurrency == level
        assert not (folder / "reference_table.yaml").exists(), "a closed loop has no rate of its own"
        for record in records:
            if not record.learned:
                continue
            measured = record.measurement
            under_way = measured.completion_rate_per_s * measured.latency.mean_ms / 1e3
            assert under_way < level + 1
            assert record.cost == pytest.approx(1e3 / measured.completion_rate_per_s)
    assert (header.load or {})["shape"] == ["x:16"]
    assert header.agent_from is not None, "the second goes on with what the first one learned"
    assert exit_code("--export", "run/concurrency-3", "--json") == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out) == json.loads((folder / "summary.json").read_text())
    assert "report.html" in printed.err


def test_a_load_over_the_limit_does_not_end_those_after_it(
    idle: RunningServer, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--bench", "--model", "sleep", "--concurrency", "1,2", "--slo-p95-ms", 5, "--validation", 0)
    run = ("--target", idle.address, *load, "--agent", "random", "--intervals", 2, "--out", "run", *QUICK)
    assert exit_code(*run, "--exit-code") == LIMIT_BROKEN, "a request sleeps for 20 ms"
    assert "the best for each concurrency" in capsys.readouterr().out
    assert [(tmp_path / "run" / f"concurrency-{n}" / "summary.json").exists() for n in (1, 2)] == [True, True]


@pytest.mark.timeout(900)  # two searches of some twenty windows each
def test_the_capacity_within_a_limit_is_told_before_and_after(
    idle: RunningServer, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--bench", "--model", "sleep", "--rate", 30, "--objective", "capacity", "--slo-p95-ms", 300)
    run = ("--target", idle.address, *load, "--intervals", 3, "--out", "run", *QUICK)
    assert exit_code(*run) == 0
    said = capsys.readouterr().out
    assert "the start bears" in said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    borne = summary["capacity"]
    assert borne["slo_p95_ms"] == 300
    assert borne["start_per_s"] > 1
    if summary["found_better"]:
        assert borne["left_per_s"] > 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--concurrency", 4), "add --bench, or leave it out"),
        (("--concurrency", 4, "--bench", "--rate", 9), "give --concurrency or --rate, not both"),
        (("--objective", "capacity", "--slo-p95-ms", 9), "add --bench, or take goodput"),
        (
            ("--objective", "capacity", "--slo-p95-ms", 9, "--bench", "--concurrency", 2),
            "leave --concurrency out",
        ),
        (
            ("--objective", "throughput", "--bench", "--concurrency", 2, "--agent", "serf"),
            "schedules by the rate at which requests arrive, which a closed loop has not",
        ),
        (("--concurrency", "1,2", "--bench", "--resume", "run"), "give one --concurrency"),
        (("--json", "--advise"), "--json prints the summary of a run that tunes: leave it away"),
        (("--json", "--dry-run"), "--json prints the summary of a run that tunes: leave it away"),
        (("--shape", "x:4"), "are of a load of the run's own: add --bench, or leave them out"),
        (("--rate", 80), "are of a load of the run's own: add --bench, or leave them out"),
        (("--arrivals", "bursts"), "are of a load of the run's own: add --bench, or leave them out"),
        (("--sizes", "fixed:8"), "are of a load of the run's own: add --bench, or leave them out"),
        (("--input-data", "a.json"), "are of a load of the run's own: add --bench, or leave them out"),
        (("--bench", "--shape", "x:4", "--input-data", "a.json"), "--shape is of made-up values"),
    ],
)
def test_loads_and_objectives_that_do_not_go_together_are_refused(
    options: tuple[object, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("--target", "localhost:1", *options) == 2
    assert sentence in capsys.readouterr().err
