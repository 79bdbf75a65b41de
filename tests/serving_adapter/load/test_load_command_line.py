from __future__ import annotations

import csv
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer

from serving_adapter.load.command_line import main
from tests.support.servers.echo_server import EchoService, serving

COMMAND = [sys.executable, "-c", "from serving_adapter.load.command_line import main; main()"]


@pytest.fixture
def service() -> EchoService:
    return EchoService()


@pytest.fixture
def address(service: EchoService) -> Iterator[str]:
    with serving(service) as address:
        yield address


def run(argv: list[str]) -> object:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return caught.value.code


def sentence_of_failure(capfd: pytest.CaptureFixture[str], argv: list[str]) -> str:
    assert run(argv) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err.strip()


def test_a_run_reports_on_the_terminal_and_in_files(
    address: str, service: EchoService, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "load"
    argv = ["--target", address, "--model", "echo", "--rate", "200", "--duration-s", "1.2", "--out", str(out)]
    assert run([*argv, "--sizes", "uniform:2:9", "--arrivals", "bursts", "--seed", "4"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(f"sending to echo on {address}: bursts arrivals at 200/s\n")
    assert "latency p99.9" in shown
    report = json.loads((out / "load.json").read_text())
    assert report["sent"] == report["completed"] == len(service.requests) > 0
    assert report["failed"] == {}
    assert report["latency_ms"]["p50"] <= report["latency_ms"]["max"]
    assert (report["options"]["rate"], report["options"]["out"]) == (200.0, str(out))
    rows = list(csv.DictReader((out / "load.csv").read_text().splitlines()))
    assert [int(row["second"]) for row in rows] == list(range(len(rows)))
    assert sum(int(row["completed"]) for row in rows) == report["completed"]
    assert {request.inputs[0].shape[1] for request in service.requests} <= set(range(2, 10))


def test_each_request_is_told_of_if_asked_for(
    address: str, service: EchoService, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--target", address, "--rate", "100", "--duration-s", "0.5", "--requests"]
    began_at = time.time()
    assert run([*argv, "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    assert len(rows) == len(service.requests) > 0
    assert {row["status"] for row in rows} == {"OK"}
    assert all(began_at < float(row["at"]) < time.time() for row in rows)
    report = json.loads((tmp_path / "load.json").read_text())
    assert max(float(row["latency_ms"]) for row in rows) == pytest.approx(
        report["latency_ms"]["max"], abs=0.01
    )
    capfd.readouterr()
    assert "name it with --out" in sentence_of_failure(capfd, argv)


def test_a_trace_with_sizes_is_replayed(address: str, service: EchoService, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,context_tokens,generated_tokens\n0,10,1\n10,20,1\n30,40,1\n")
    argv = ["--target", address, "--arrivals", str(trace), "--rate", "20", "--sizes", "trace:4"]
    assert run([*argv, "--duration-s", "0"]) == 0  # until the trace's end
    assert len(service.requests) == 3
    assert {request.inputs[0].shape[1] for request in service.requests} <= {1, 2, 4}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_signal_ends_an_endless_run_with_its_report(
    address: str, service: EchoService, tmp_path: Path, number: int, code: int
) -> None:
    argv = ["--target", address, "--rate", "100", "--duration-s", "0", "--out", str(tmp_path)]
    with subprocess.Popen(COMMAND + argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
        assert service.got_one.wait(60)
        load.send_signal(number)
        shown, errors = load.communicate(timeout=60)
    assert (load.returncode, errors) == (code, "")
    assert "completed" in shown
    report = json.loads((tmp_path / "load.json").read_text())
    assert report["sent"] == report["completed"] == len(service.requests)


def test_a_full_disk_costs_rows_and_no_report(address: str, service: EchoService, tmp_path: Path) -> None:
    short_files = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); "
    command = [*COMMAND[:-1], short_files + COMMAND[-1]]
    argv = ["--target", address, "--rate", "300", "--duration-s", "1.5", "--requests", "--out", str(tmp_path)]
    load = subprocess.run(command + argv, capture_output=True, text=True, timeout=60)
    assert load.returncode == 1
    (sentence,) = load.stderr.splitlines()
    assert sentence.startswith(f"{tmp_path / 'requests.csv'} is not complete: ")
    assert f"sent          │ {len(service.requests)} in" in load.stdout
    assert (tmp_path / "load.csv").read_text().count("\n") == 3
    assert {file.name for file in tmp_path.iterdir()} == {"load.csv", "load.json", "requests.csv"}


def test_a_reader_that_goes_costs_no_row(address: str, service: EchoService, tmp_path: Path) -> None:
    argv = ["--target", address, "--rate", "100", "--duration-s", "1", "--out", str(tmp_path)]
    ours, theirs = os.pipe()
    os.close(ours)
    load = subprocess.run(COMMAND + argv, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(theirs)
    assert (load.returncode, load.stderr) == (0, "")
    report = json.loads((tmp_path / "load.json").read_text())
    assert report["sent"] == report["completed"] == len(service.requests)


def test_a_closed_terminal_ends_an_endless_run_with_its_report_on_disk(
    address: str, service: EchoService, tmp_path: Path
) -> None:
    ours, terminal = os.openpty()
    argv = ["--target", address, "--rate", "100", "--duration-s", "0", "--out", str(tmp_path)]
    load = subprocess.Popen(COMMAND + argv, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    assert service.got_one.wait(60)
    for _ in range(2):  # from the terminal and from its shell
        load.send_signal(signal.SIGHUP)
    os.close(ours)
    assert load.wait(timeout=60) == 0
    assert json.loads((tmp_path / "load.json").read_text())["completed"] == len(service.requests)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_levels_of_a_closed_loop(
    address: str, service: EchoService, tmp_path: Path, number: int
) -> None:
    argv = ["--target", address, "--concurrency", "1,2", "--duration-s", "1000", "--out", str(tmp_path)]
    with subprocess.Popen(COMMAND + argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
        assert service.got_one.wait(60)
        load.send_signal(number)
        _, errors = load.communicate(timeout=60)
    assert (load.returncode, errors) == (130 if number == signal.SIGINT else 0, "")
    report = json.loads((tmp_path / "concurrency-1" / "load.json").read_text())
    assert report["sent"] == report["completed"] == len(service.requests)
    assert not (tmp_path / "concurrency-2").exists()
    assert list(csv.DictReader((tmp_path / "levels.csv").read_text().splitlines())) == []  # it was cut short


SIGNAL_AFTER_A_LEVEL = """
import signal
from serving_adapter.load import command_line

publish = command_line._publish
def publish_later(*arguments):
    signal.raise_signal({})
    command_line._publish = publish
    publish(*arguments)

command_line._publish = publish_later
command_line.main()
"""


@pytest.mark.parametrize("levels", ["1", "1,2"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_signal_after_a_level_keeps_that_level_and_begins_no_other(
    address: str, tmp_path: Path, levels: str, number: int, code: int
) -> None:
    argv = ["--target", address, "--concurrency", levels, "--duration-s", "0.2", "--out", str(tmp_path)]
    command = [sys.executable, "-c", SIGNAL_AFTER_A_LEVEL.format(int(number))]
    load = subprocess.run(command + argv, capture_output=True, text=True, timeout=60)
    assert (load.returncode, load.stderr) == (code, "")
    assert load.stdout.count("completed") == 1
    first = tmp_path if levels == "1" else tmp_path / "concurrency-1"
    assert json.loads((first / "load.json").read_text())["completed"] > 0
    if levels != "1":
        rows = csv.DictReader((tmp_path / "levels.csv").read_text().splitlines())
        assert [row["concurrency"] for row in rows] == ["1"]
        assert not (tmp_path / "concurrency-2").exists()


TOLD_TO_STOP = """
from serving_adapter.load import command_line

class Told(command_line.StopSignal):
    def set(self):
        super().set()
        print("told to stop", flush=True)

command_line.StopSignal = Told
command_line.main()
"""


def test_a_second_ctrl_c_ends_the_wait_for_answers_without_a_word(address: str, service: EchoService) -> None:
    may_answer = threading.Event()

    def answer(number: int, context: object) -> None:
        may_answer.wait()

    service.answer = answer
    command = [sys.executable, "-c", TOLD_TO_STOP, "--target", address, "--concurrency", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
        assert service.got_one.wait(60)
        load.send_signal(signal.SIGINT)
        assert load.stdout is not None
        assert "told to stop\n" in iter(load.stdout.readline, "")
        load.send_signal(signal.SIGINT)
        shown = load.communicate(timeout=60)
    may_answer.set()
    assert (load.returncode, *shown) == (130, "", "")


SIGNALS_BEFORE_THE_LOOP_GOES_ROUND = """
import signal
from contextlib import asynccontextmanager
from serving_adapter.load import command_line

@asynccontextmanager
async def ready(*arguments):
    for number in {}:
        signal.raise_signal(number)
    yield None

command_line.ready = ready
command_line.main()
"""


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGTERM, signal.SIGINT, signal.SIGTERM], -signal.SIGTERM),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGINT], 130),
        ([signal.SIGTERM, signal.SIGINT], 0),
        ([signal.SIGINT, signal.SIGTERM], 130),
        ([signal.SIGHUP, signal.SIGHUP], 0),
    ],
)
def test_the_same_signal_twice_ends_also_what_keeps_the_loop_from_going_round(
    numbers: list[int], code: int
) -> None:
    script = SIGNALS_BEFORE_THE_LOOP_GOES_ROUND.format([int(number) for number in numbers])
    command = [sys.executable, "-c", script, "--target", "127.0.0.1:1"]
    load = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (load.returncode, load.stderr) == (code, "")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130), (signal.SIGHUP, -signal.SIGHUP)],
)
def test_a_signal_ends_the_wait_for_arrivals_at_once(tmp_path: Path, number: int, code: int) -> None:
    trace = tmp_path / "trace.csv"
    os.mkfifo(trace)
    argv = ["--target", "127.0.0.1:1", "--rate", "1", "--arrivals", str(trace)]
    with subprocess.Popen(COMMAND + argv, stderr=subprocess.PIPE, text=True) as load, trace.open("w"):
        load.send_signal(number)  # it has opened the other end
        assert load.wait(timeout=60) == code
        assert load.stderr is not None
        assert load.stderr.read() == ""


@pytest.mark.parametrize("levels", ["1", "1,2"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_signal_ends_the_wait_for_a_server(levels: str, number: int, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        argv = ["--target", f"127.0.0.1:{silent.getsockname()[1]}", "--wait-s", "1000"]
        argv += ["--concurrency", levels]
        with subprocess.Popen(COMMAND + argv, stderr=subprocess.PIPE, text=True) as load:
            connection, _ = silent.accept()  # it is waiting now
            load.send_signal(number)
            connection.close()
            assert load.wait(timeout=60) == code
            assert load.stderr is not None
            assert load.stderr.read() == ""


def test_a_port_where_nothing_listens_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        target = f"127.0.0.1:{closed.getsockname()[1]}"
    sentence = sentence_of_failure(capfd, ["--target", target, "--wait-s", "0.3"])
    assert target in sentence
    assert "does not answer (connection refused)" in sentence
    assert "(waited 0.3 s)" in sentence


def test_a_metrics_port_is_told_from_a_grpc_port_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    class Silent(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Silent) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        sentence = sentence_of_failure(
            capfd, ["--target", f"127.0.0.1:{page.server_port}", "--wait-s", "1e6"]
        )
        page.shutdown()
        thread.join()
    assert "answers, but not gRPC" in sentence


def test_a_grpc_server_of_another_kind_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(GRPCInferenceServiceServicer()) as address:  # knows the names, implements none
        sentence = sentence_of_failure(capfd, ["--target", address, "--wait-s", "1e6"])
    assert "does not know ServerReady" in sentence


def test_an_unknown_model_is_refused_with_those_there(
    address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sentence = sentence_of_failure(capfd, ["--target", address, "--model", "bert"])
    assert "no model 'bert'; the models there: echo" in sentence


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--target", "localhost"], "--target must be HOST:PORT"),
        (["--target", "http://localhost:8500"], "--target must be HOST:PORT"),
        (["--rate", "0"], "--rate must be above 0, got 0.0"),
        (["--duration-s", "-1"], "--duration-s must be at least 0, got -1.0"),
        (["--connections", "0"], "--connections must be above 0, got 0"),
        (["--connections", "1000000000"], "--connections must be at most 10000, got 1000000000"),
        (["--arrivals", "posson"], "unknown arrivals 'posson'"),
        (["--arrivals", "missing.csv"], "cannot read the trace missing.csv"),
        (["--sizes", "big"], "sizes 'big' are not understood"),
        (["--sizes", "trace"], "sizes from a trace need arrivals from a trace"),
        (["--tls-ca", "missing.pem"], "cannot read the TLS certificates missing.pem"),
        (["--out", "/dev/null/x"], "cannot write to /dev/null/x: Not a directory"),
    ],
)
def test_wrong_use_is_one_sentence(capfd: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    assert words in sentence_of_failure(capfd, argv)


def test_a_closed_loop_keeps_so_many_requests_under_way(
    address: str, service: EchoService, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--target", address, "--concurrency", "1,3", "--duration-s", "0.4", "--out", str(tmp_path)]
    assert run(argv) == 0
    assert f"sending to echo on {address}: 3 requests at once" in capfd.readouterr().out
    rows = list(csv.DictReader((tmp_path / "levels.csv").read_text().splitlines()))
    assert [row["concurrency"] for row in rows] == ["1", "3"]
    sent = [json.loads((tmp_path / f"concurrency-{n}" / "load.json").read_text())["sent"] for n in (1, 3)]
    assert sum(sent) == len(service.requests)
    for row, count in zip(rows, sent, strict=True):
        at_once = float(row["answered_per_s"]) * float(row["mean_ms"]) / 1e3  # Little's law
        assert 0 < at_once <= float(row["concurrency"]) + 0.01
        assert count > 1


def test_the_capacity_within_a_limit_is_found_and_told(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--target", address, "--find-capacity", "concurrency", "--slo-p95-ms", "0.001"]
    assert run([*argv, "--window-s", "0.05", "--out", str(tmp_path)]) == 0
    assert "bears no load at p95 <= 0.001 ms: even 1 at once breaks it" in capfd.readouterr().out
    found = json.loads((tmp_path / "capacity.json").read_text())
    assert (found["level"], found["confirmed"], found["unit"]) == (0, False, "concurrency")
    rows = list(csv.DictReader((tmp_path / "capacity.csv").read_text().splitlines()))
    assert len(rows) == found["windows"] == 2
    assert {row["borne"] for row in rows} == {"False"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--slo-p95-ms", "5"], "is the limit of --find-capacity: give both"),
        (["--find-capacity", "rate"], "needs a limit above 0: give --slo-p95-ms"),
        (
            ["--find-capacity", "rate", "--slo-p95-ms", "5", "--concurrency", "2"],
            "leave --concurrency out",
        ),
        (["--find-capacity", "rate", "--slo-p95-ms", "5", "--arrivals", "a.csv"], "leave the trace out"),
        (["--concurrency", "1,2", "--duration-s", "0"], "give --duration-s above 0"),
    ],
)
def test_loads_that_do_not_go_together_are_refused(
    options: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sentence in sentence_of_failure(capfd, options)
