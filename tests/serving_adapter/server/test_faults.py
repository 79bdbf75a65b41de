"""Nothing is lost: changes under load, dying and hanging workers, overload, deadlines, drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.flags.parsing import parse
from serving_adapter.server.command_line import prepared
from serving_adapter.server.options import ServeOptions
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until


def request_of(model: str, first: float, rows: int = 1) -> pb.ModelInferRequest:
    values = np.zeros((rows, 16), np.float32)
    values[:, 0] = first
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=list(values.shape))
    request.raw_input_contents.append(values.tobytes())
    return request


def answer_of(response: pb.ModelInferResponse) -> float:
    return float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])


def override(**knobs: int) -> str:
    parameters = {
        name: {"string_value": str(value)}
        for name, value in (
            ("INTRA_OP_THREAD_COUNT", knobs.get("intra")),
            ("INTER_OP_THREAD_COUNT", knobs.get("inter")),
        )
        if value is not None
    }
    return json.dumps(
        {
            "max_batch_size": knobs.get("batch", 1),
            "instance_group": [{"count": knobs.get("instances", 1)}],
            "parameters": parameters,
            "dynamic_batching": {"max_queue_delay_microseconds": knobs.get("delay", 0)},
        }
    )


def load_request(model: str, config: str) -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name=model)
    request.parameters["config"].string_param = config
    return request


def metric(server, name: str) -> float:
    page = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
    return sum(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(name + "{"))


def worker_pids(server) -> list[int]:
    """The processes forked by the zygote, which is the front's only child."""
    (zygote,) = psutil.Process(server.process.pid).children()
    return [child.pid for child in zygote.children()]


def test_every_knob_changes_under_load_without_a_failed_or_swapped_answer(start_server):
    server = start_server("--model", "burn", "--model-option", "branches=2", "--model-option", "rounds=1")
    changes = [
        {"instances": 3, "intra": 1, "inter": 2, "batch": 4, "delay": 1000},
        {"instances": 1, "intra": 2, "inter": 1, "batch": 8, "delay": 5000},
        {"instances": 2, "intra": 2, "inter": 2, "batch": 1, "delay": 0},
        {"instances": 2, "intra": 1, "inter": 2, "batch": 2, "delay": 200},
        {"instances": 1, "intra": 1, "inter": 1, "batch": 1, "delay": 0},
    ]

    async def drive() -> tuple[int, list[dict[str, int]]]:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            done, seen = asyncio.Event(), []

            async def client(first: int) -> int:
                count = 0
                while not done.is_set():
                    value = float(first + 1000 * count)
                    assert answer_of(await stub.ModelInfer(request_of("burn", value))) == value
                    count += 1
                return count

            clients = [asyncio.create_task(client(i)) for i in range(6)]
            for change in changes * 2:
                await stub.RepositoryModelLoad(load_request("burn", override(**change)))
                config = (await stub.ModelConfig(pb.ModelConfigRequest(name="burn"))).config
                seen.append(
                    {
                        "instances": config.instance_group[0].count,
                        "intra": int(config.parameters["INTRA_OP_THREAD_COUNT"].string_value),
                        "inter": int(config.parameters["INTER_OP_THREAD_COUNT"].string_value),
                        "batch": config.max_batch_size,
                        "delay": config.dynamic_batching.max_queue_delay_microseconds,
                    }
                )
            done.set()
            return sum(await asyncio.gather(*clients)), seen

    answered, seen = asyncio.run(drive())
    assert seen == changes * 2
    assert answered > 0
    assert metric(server, "nv_inference_request_failure") == 0
    until(lambda: len(worker_pids(server)) == 1, "the retired workers have ended")


@pytest.fixture(scope="module")
def suffering() -> Iterator[RunningServer]:
    """A server of one worker, which its tests kill, stop and fill."""
    options = ("--model-option", "ms=20", "--model-option", "hang_on=13")
    running = start("--model", "sleep", *options, "--max-queue-size", 4, "--worker-timeout-s", 1)
    yield running
    assert running.stop() == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


def test_a_killed_worker_is_replaced_and_its_batch_run_again(suffering):
    server, before = suffering, metric(suffering, "rrl_worker_replacements")

    async def drive() -> float:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            (pid,) = worker_pids(server)
            os.kill(pid, signal.SIGSTOP)
            answer = asyncio.ensure_future(stub.ModelInfer(request_of("sleep", 7.0)))
            while metric(server, "rrl_in_flight_request_count") == 0:
                await asyncio.sleep(0)
            with suppress(ProcessLookupError):  # found to be hung by then
                os.kill(pid, signal.SIGKILL)
            return answer_of(await answer)

    assert asyncio.run(drive()) == 7.0
    assert metric(server, "rrl_worker_replacements") == before + 1


def test_a_killed_zygote_takes_its_workers_along_and_all_come_back(suffering):
    server = suffering
    (zygote,) = psutil.Process(server.process.pid).children()
    zygote.kill()
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        answers = [answer_of(stub.ModelInfer(request_of("sleep", float(i)), timeout=60)) for i in range(3)]
    assert answers == [0.0, 1.0, 2.0]


def test_a_hung_worker_is_ended_and_a_poisonous_request_given_up(suffering):
    with grpc.insecure_channel(suffering.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="3 workers ended while they ran this batch") as failed:
            stub.ModelInfer(request_of("sleep", 13.0))
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert answer_of(stub.ModelInfer(request_of("sleep", 5.0))) == 5.0


def test_an_overfull_queue_refuses_at_once_and_serves_the_rest(suffering):
    async def drive() -> list[object]:
        async with grpc.aio.insecure_channel(suffering.address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            calls = (stub.ModelInfer(request_of("sleep", 100.0 + i)) for i in range(30))
            return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(drive())
    refused = [r for r in results if isinstance(r, grpc.aio.AioRpcError)]
    assert {r.code() for r in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "queue of model 'sleep' is full" in refused[0].details()
    assert len(results) - len(refused) >= 5


def test_a_request_past_its_deadline_leaves_the_queue(start_server):
    server = start_server("--model", "sleep")
    (worker,) = map(psutil.Process, worker_pids(server))
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        worker.suspend()
        running = stub.ModelInfer.future(request_of("sleep", 1.0))
        until(lambda: metric(server, "rrl_in_flight_request_count") == 1)
        with pytest.raises(grpc.RpcError) as late:
            stub.ModelInfer(request_of("sleep", 2.0), timeout=0.05)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        worker.resume()
        assert answer_of(running.result()) == 1.0
        assert metric(server, "nv_inference_exec_count") == 1


def test_sigterm_answers_what_is_in_flight_and_ends_every_process(start_server):
    server = start_server("--model", "sleep", "--model-option", "ms=100")
    family = [psutil.Process(pid) for pid in worker_pids(server)]

    async def drive() -> list[float]:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            calls = [asyncio.ensure_future(stub.ModelInfer(request_of("sleep", float(i)))) for i in range(4)]
            while metric(server, "rrl_in_flight_request_count") < 4:
                await asyncio.sleep(0)
            server.process.send_signal(signal.SIGTERM)
            return [answer_of(answer) for answer in await asyncio.gather(*calls)]

    assert asyncio.run(drive()) == [0.0, 1.0, 2.0, 3.0]
    assert server.process.wait(30) == 0
    assert not psutil.wait_procs(family, timeout=10)[1]


WRONG_OPTIONS = [
    (("--instances", "0"), "instances must be from 1 to 64, got 0"),
    (("--model-option", "novalue"), "cannot read --model-option 'novalue'"),
    (("--model", "noop"), "model 'noop' is given twice"),
    (("--worker-timeout-s", "0"), "--worker-timeout-s must be from 0.1"),
    (("--max-queue-size", "100000000"), "--max-queue-size must be from 1"),
    (("--control-key-file", os.devnull), "--control-key-file /dev/null is empty"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_OPTIONS)
def test_wrong_options_are_told_in_one_sentence_before_a_model_is_built(capsys, arguments, sentence):
    with pytest.raises(SystemExit, match="2"):
        prepared(parse(ServeOptions, ["--model", "noop", *arguments]))
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


BAD_STARTS = [
    (("--model", "no_such_model"), "no_such_model"),
    (("--model", "noop", "--device", "tpu"), "--device must be cpu, cuda or cuda:N, got 'tpu'"),
    (("--model", "noop", "--device", "cuda:99"), "--device cuda:99 is not there"),
    (("--model", "noop", "--tls-cert", "cert.pem"), "TLS needs both"),
    (("--model", "sleep", "--model-option", "hours=3"), "hours"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_STARTS)
def test_a_server_that_cannot_start_says_why_in_one_sentence(arguments, sentence):
    command = [sys.executable, "-m", "serving_adapter.server.command_line", *arguments]
    ports = ["--port", "0", "--metrics-port", "0"]
    ended = subprocess.run([*command, *ports], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = (line for line in ended.stderr.splitlines() if not line.endswith("is still being built"))
    assert sentence in line


def test_nothing_outlives_a_killed_front(start_server):
    server = start_server("--model", "sleep", "--instances", 2)
    family = psutil.Process(server.process.pid).children(recursive=True)
    assert len(family) == 3
    server.stop(signal.SIGKILL)
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_model_is_ready_only_while_somebody_can_answer(suffering):
    server = suffering
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)

        def ready() -> tuple[bool, bool]:
            of_server = stub.ServerReady(pb.ServerReadyRequest()).ready
            return of_server, stub.ModelReady(pb.ModelReadyRequest(name="sleep")).ready

        assert ready() == (True, True)
        psutil.Process(server.process.pid).children()[0].kill()
        until(lambda: ready() == (False, False))
        assert answer_of(stub.ModelInfer(request_of("sleep", 3.0), timeout=60)) == 3.0
        assert ready() == (True, True)
