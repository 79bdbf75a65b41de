"""The page that a run serves of itself."""

from __future__ import annotations

import io
import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from rrl.command_line.opening.several_models import SharedByModels
from rrl.command_line.options.option_values import change_limits
from rrl.command_line.options.watch_options import WatchOptions
from rrl.command_line.own_page import own_page, page_of
from rrl.command_line.tune import tune
from rrl.tuning.stop import Stop, Stopped
from rrl.views.run_metrics import RunMetrics
from scripts.ray_cluster import free_ports
from tests.support.runs.tuned_runs import SPACE, header, metrics_of, simulated

LOOPBACK = "127.0.0.1"
INTERVAL_S = 5.0


def fetched(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_has_metrics_and_health_and_nothing_else_and_ends_with_the_run() -> None:
    env = simulated()
    metrics = metrics_of(header(env), SPACE.configuration(env.start))
    with own_page(metrics, INTERVAL_S, LOOPBACK, 0) as address:
        status, text = fetched(f"{address}/metrics")
        assert status == 200
        assert 'rrl_tune_knob_in_force{knob="instances"} 4.0' in text
        status, text = fetched(f"{address}/health")
        assert (status, json.loads(text)["status"], json.loads(text)["target"]) == (200, "ok", "up")
        assert fetched(f"{address}/secrets")[0] == 404
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{address}/health", timeout=30)


def test_a_run_that_gives_no_sign_for_long_is_told_to_be_stuck() -> None:
    moment = [0.0]
    env = simulated()
    metrics = metrics_of(header(env), {}, clock=lambda: moment[0])
    answer = page_of(metrics, stuck_after_s=60.0)
    said: list[str] = []

    def health() -> tuple[str, dict]:
        (body,) = answer({"PATH_INFO": "/health"}, lambda status, headers: said.append(status))
        return said[-1], json.loads(body)

    moment[0] = 59.0
    assert health()[0] == "200 OK"
    metrics.away("gone")  # it waits, which is a sign of life
    moment[0] = 100.0
    assert health() == (
        "200 OK",
        {"status": "ok", "target": "away", "intervals": 0, "seconds_since_last_sign": 41.0},
    )
    moment[0] = 120.0
    status, told = health()
    assert status == "503 Service Unavailable"
    assert told["status"] == "stuck"


class LooksAtPage(Stop):
    """Stops what sleeps, once it has read the page that was printed."""

    def __init__(self, said: io.StringIO) -> None:
        super().__init__(lambda text: None)
        self.health: tuple[int, str] = (0, "")
        self.metrics = ""
        self._said = said

    def sleep(self, duration_s: float) -> None:
        found = re.search(r"on (http://127\.0\.0\.1:\d+)/metrics", self._said.getvalue())
        assert found, self._said.getvalue()
        self.health, self.metrics = fetched(f"{found[1]}/health"), fetched(f"{found[1]}/metrics")[1]
        raise Stopped


def test_a_watch_whose_target_was_never_there_tells_so_on_its_page(state_home: Path) -> None:
    (port,) = free_ports(1)
    options = WatchOptions(target=f"{LOOPBACK}:{port}", metrics_port=0, out=Path("run"))
    said = io.StringIO()
    stop = LooksAtPage(said)
    with pytest.raises(Stopped):
        tune(options, Console(file=said, width=300), stop, SharedByModels(change_limits(options), []))
    status, told = stop.health
    assert (status, json.loads(told)["status"], json.loads(told)["target"]) == (200, "ok", "away")
    assert "rrl_tune_target_up 0.0" in stop.metrics
    assert "waiting for it" in said.getvalue()


def test_a_port_that_is_taken_is_told_in_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ValueError, match=rf"metrics on 127.0.0.1:{port} .* choose another --metrics-port"),
            own_page(RunMetrics(), INTERVAL_S, LOOPBACK, port),
        ):
            pass
