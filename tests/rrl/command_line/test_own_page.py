"""The page that a run serves of itself."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest

from rrl.command_line.own_page import own_page, page_of
from rrl.views.run_metrics import RunMetrics
from tests.support.runs.tuned_runs import SPACE, header, simulated

LOOPBACK = "127.0.0.1"


def fetched(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_has_metrics_and_health_and_nothing_else_and_ends_with_the_run() -> None:
    env = simulated()
    metrics = RunMetrics(header(env), SPACE.configuration(env.start))
    with own_page(metrics, header(env), LOOPBACK, 0) as address:
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
    metrics = RunMetrics(header(env), {}, clock=lambda: moment[0])
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


def test_a_port_that_is_taken_is_told_in_a_sentence() -> None:
    env = simulated()
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ValueError, match=rf"metrics on 127.0.0.1:{port} .* choose another --metrics-port"),
            own_page(RunMetrics(header(env), {}), header(env), LOOPBACK, port),
        ):
            pass
