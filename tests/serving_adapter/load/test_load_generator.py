from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages

from serving_adapter.load import generator as generator_module
from serving_adapter.load.arrivals import Arrivals, Poisson, TimestampTrace, Uniform
from serving_adapter.load.connection import ModelSignature, open_channels, wait_for_model
from serving_adapter.load.generator import LONGEST_OVERTIME_S, LoadGenerator, Send, grpc_send
from serving_adapter.load.payloads import Payloads
from serving_adapter.load.report import LoadReport, RequestRow, SecondRow
from serving_adapter.load.sizes import FixedSizes, Sizes, UniformSizes
from serving_adapter.target import TargetError
from tests.support.servers.echo_server import TENSOR, EchoService, serving, start

TOKENS = ModelSignature("echo", [TENSOR(name="tokens", datatype="INT64", shape=[-1, -1])], is_batched=True)

EIGHT = FixedSizes(8)


def payloads(model: ModelSignature = TOKENS, seed: int = 0, **settings: Any) -> Payloads:
    return Payloads(model, np.random.default_rng(seed), **settings)


def load(
    address: str,
    arrivals: Arrivals,
    *,
    sizes: Sizes = EIGHT,
    seed: int = 0,
    duration_s: float = math.inf,
    timeout_s: float = 30.0,
    connections: int = 1,
    on_second: Callable[[SecondRow], None] = lambda row: None,
    on_request: Callable[[RequestRow], None] = lambda row: None,
) -> LoadReport:
    async def run() -> LoadReport:
        channels = open_channels(address, connections, None)
        model = await wait_for_model(channels[0], address, None, wait_s=10.0)
        send = grpc_send(channels, timeout_s)
        made = payloads(model)
        generator = LoadGenerator(send, made, arrivals, sizes, seed, duration_s, on_second, on_request)
        report = await generator.run(asyncio.Event())
        for channel in channels:
            await channel.close()
        return report

    return asyncio.run(run())


def load_by(send: Send, arrivals: Arrivals, duration_s: float) -> LoadReport:
    generator = LoadGenerator(send, payloads(), arrivals, EIGHT, 0, duration_s)
    return asyncio.run(generator.run(asyncio.Event()))


def describe(address: str, model: str | None = None, wait_s: float = 10.0) -> ModelSignature:
    async def run() -> ModelSignature:
        (channel,) = open_channels(address, 1, None)
        async with channel:
            return await wait_for_model(channel, address, model, wait_s)

    return asyncio.run(run())


def test_requests_leave_while_none_is_answered_and_latency_counts_from_their_moment() -> None:
    everyone_is_in = threading.Event()
    released_s: list[float] = []

    def stall_until_all_came(number: int, context: grpc.ServicerContext) -> None:
        if number == 29:  # a client that waits for answers never sends this one
            released_s.append(time.monotonic())
            everyone_is_in.set()
        assert everyone_is_in.wait(30)

    service = EchoService(stall_until_all_came)
    with serving(service) as address:
        report = load(address, Uniform(200.0), duration_s=0.149)
    assert (report.sent, report.completed, report.failed) == (30, 30, {})
    waited_ms = 1e3 * (released_s[0] - np.array(service.received_s))
    assert report.latency_ms is not None
    assert report.latency_ms.max >= waited_ms.max()
    assert report.latency_ms.mean >= waited_ms.mean()
    assert report.latency_ms.max >= 29 / 200.0 * 1e3


def test_a_late_client_owns_up_and_its_requests_waited() -> None:
    sent = []

    async def answer() -> None: ...

    def block_the_client_once(payload: bytes) -> asyncio.Task[None]:
        sent.append(time.monotonic())
        while time.monotonic() < sent[0] + 0.2:
            pass  # the event loop is held: nothing can be sent
        return asyncio.create_task(answer())

    report = load_by(block_the_client_once, Uniform(100.0), duration_s=0.1)
    assert report.sent == 10
    assert report.send_lag_max_ms >= 150.0
    assert report.latency_ms is not None
    assert report.latency_ms.p50 >= 100.0


def test_a_client_that_never_keeps_up_ends_all_the_same_and_tells_for_how_long_it_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], time=time.time)
    monkeypatch.setattr(generator_module, "time", clock)

    async def answer() -> None: ...

    def take_a_second(payload: bytes) -> Coroutine[Any, Any, None]:
        now_s[0] += 1.0
        return answer()

    report = load_by(take_a_second, Uniform(1000.0), duration_s=2.0)
    assert 2.0 + LONGEST_OVERTIME_S <= report.duration_s < 100.0
    assert report.sent < 100
    assert report.offered_rate_per_s <= 2.0


def test_failures_are_counted_by_status() -> None:
    def refuse_some(number: int, context: grpc.ServicerContext) -> None:
        if number % 3 == 0:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")

    rows: list[SecondRow] = []
    requests: list[RequestRow] = []
    with serving(EchoService(refuse_some)) as address:
        sinks: dict[str, Any] = {"on_second": rows.append, "on_request": requests.append}
        report = load(address, Uniform(200.0), duration_s=0.149, **sinks)
    assert (report.sent, report.completed, report.failed) == (30, 20, {"RESOURCE_EXHAUSTED": 10})
    assert sum(row.sent for row in rows) == 30
    assert sum(row.completed for row in rows) == 20
    assert sum(row.failed for row in rows) == 10
    assert Counter(request.status for request in requests) == {"OK": 20, "RESOURCE_EXHAUSTED": 10}
    first_at = min(request.at for request in requests)
    assert sorted(request.at - first_at for request in requests) == pytest.approx(
        np.arange(30) / 200, abs=1e-5
    )


def test_requests_without_an_answer_time_out() -> None:
    release = threading.Event()
    with serving(EchoService(lambda number, context: assert_set(release))) as address:
        report = load(address, Uniform(100.0), duration_s=0.049, timeout_s=0.2)
        release.set()
    assert (report.sent, report.completed, report.failed) == (5, 0, {"DEADLINE_EXCEEDED": 5})


def assert_set(event: threading.Event) -> None:
    assert event.wait(30)


def test_a_lost_server_is_counted_and_found_again() -> None:
    rows: list[SecondRow] = []
    server, address = start(EchoService())

    async def row_with(column: str) -> None:
        seen = len(rows)
        while not any(getattr(row, column) for row in rows[seen:]):
            await asyncio.sleep(0.01)

    async def run() -> LoadReport:
        (channel,) = open_channels(address, 1, None)
        stop = asyncio.Event()
        send = grpc_send([channel], 30.0)
        generator = LoadGenerator(send, payloads(), Poisson(100.0), EIGHT, 0, on_second=rows.append)
        running = asyncio.create_task(generator.run(stop))
        await row_with("completed")
        server.stop(None).wait()
        await row_with("failed")
        again, _ = start(EchoService(), address)
        await row_with("completed")
        stop.set()
        report = await running
        await channel.close()
        again.stop(None).wait()
        return report

    report = asyncio.run(run())
    assert report.failed["UNAVAILABLE"] > 0
    assert report.sent == report.completed + sum(report.failed.values())


def test_stop_ends_an_endless_run_and_what_is_in_flight_is_answered() -> None:
    stop = asyncio.Event()
    answers: list[asyncio.Future[None]] = []

    def send(payload: bytes) -> asyncio.Future[None]:
        answers.append(asyncio.get_running_loop().create_future())
        if len(answers) == 5:
            stop.set()
            asyncio.get_running_loop().call_soon(answer_all)
        return answers[-1]

    def answer_all() -> None:
        for answer in answers:
            if not answer.done():
                answer.set_result(None)
        asyncio.get_running_loop().call_soon(answer_all)

    generator = LoadGenerator(send, payloads(), Uniform(1000.0), EIGHT, 0)
    report = asyncio.run(generator.run(stop))
    assert report.sent == report.completed >= 5


def test_a_run_ends_with_its_trace() -> None:
    async def answer() -> None: ...

    trace = TimestampTrace(np.array([0.0, 0.01, 0.05]))
    report = load_by(lambda payload: answer(), trace, duration_s=1e6)
    assert report.sent == report.completed == 3
    assert report.duration_s < 1000.0


def test_a_broken_sink_of_rows_ends_the_run() -> None:
    async def answer() -> None: ...

    def no_space(row: SecondRow) -> None:
        raise OSError("no space left")

    generator = LoadGenerator(
        lambda payload: answer(), payloads(), Uniform(0.001), EIGHT, 0, on_second=no_space
    )
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(generator.run(asyncio.Event()))


def test_the_same_seed_sends_the_same_requests() -> None:
    def received(seed: int) -> list[bytes]:
        service = EchoService()
        with serving(service) as address:
            load(address, Poisson(300.0), sizes=UniformSizes(1, 50), seed=seed, duration_s=0.1)
        return sorted(request.SerializeToString() for request in service.requests)

    first = received(1)
    assert len(first) > 10
    assert received(1) == first
    assert received(2) != first


def test_connections_are_used_in_turn() -> None:
    service = EchoService()
    with serving(service) as address:
        load(address, Uniform(200.0), duration_s=0.05, connections=3)
    assert len(service.peers) == 3


# Requests made from the model's metadata


def decoded(payload: bytes) -> messages.ModelInferRequest:
    return messages.ModelInferRequest.FromString(payload)


def test_variable_dimensions_get_the_size_and_the_batch_is_of_one() -> None:
    request = decoded(payloads().of_size(7))
    assert request.model_name == "echo"
    assert [(i.name, i.datatype, list(i.shape)) for i in request.inputs] == [("tokens", "INT64", [1, 7])]
    tokens = np.frombuffer(request.raw_input_contents[0], np.int64)
    assert len(tokens) == 7
    assert tokens.min() >= 1000
    assert tokens.max() < 20_000


def test_every_input_gets_values_of_its_type() -> None:
    inputs = [
        TENSOR(name="image", datatype="UINT8", shape=[16, 16, 3]),
        TENSOR(name="sound", datatype="FP32", shape=[-1]),
        TENSOR(name="half", datatype="FP16", shape=[2, -1]),
        TENSOR(name="mask", datatype="BOOL", shape=[-1]),
    ]
    request = decoded(payloads(ModelSignature("mixed", inputs, is_batched=False)).of_size(500))
    assert [list(i.shape) for i in request.inputs] == [[16, 16, 3], [500], [2, 500], [500]]
    image, sound, half, mask = (
        np.frombuffer(raw, dtype)
        for raw, dtype in zip(request.raw_input_contents, ["u1", "f4", "f2", "?"], strict=True)
    )
    assert (len(image), len(half), len(mask)) == (768, 1000, 500)
    assert len(np.unique(image)) > 200
    assert sound.mean() == pytest.approx(0, abs=0.25)
    assert sound.std() == pytest.approx(1, abs=0.2)


def test_requests_are_made_once_and_memory_is_bounded() -> None:
    kept = payloads(kept_bytes=10_000)
    kept.prepare(UniformSizes(100, 300))
    first_size = kept.of_size(100)
    assert any(kept.of_size(100) is first_size for _ in range(8))  # one of a few that are kept
    beyond = kept.of_size(300)
    assert not any(kept.of_size(300) is beyond for _ in range(8))


def test_a_type_without_values_is_named() -> None:
    model = ModelSignature("texts", [TENSOR(name="text", datatype="UINT16", shape=[-1])], is_batched=False)
    says = "input 'text' of model 'texts' has datatype UINT16; values can be .* with a client of your own"
    with pytest.raises(TargetError, match=says):
        payloads(model)


# Readiness


def test_the_only_model_is_found_and_described() -> None:
    service = EchoService()
    service.max_batch_size = 0
    with serving(service) as address:
        model = describe(address)
    assert (model.name, model.is_batched, list(model.inputs[0].shape)) == ("echo", False, [-1, -1])


def test_an_unknown_model_is_refused_at_once_with_those_there() -> None:
    service = EchoService()
    service.models = ["minilm", "inception_v3"]
    with serving(service) as address:
        with pytest.raises(TargetError, match="no model 'bert'; the models there: inception_v3, minilm"):
            describe(address, "bert", wait_s=1e6)
        with pytest.raises(TargetError, match=r"give --model, the model at .*: one of inception_v3, minilm"):
            describe(address, None, wait_s=1e6)
        service.models = []
        with pytest.raises(TargetError, match="no model 'bert'; it serves none"):
            describe(address, "bert", wait_s=1e6)


def test_a_server_that_is_not_ready_is_waited_for() -> None:
    service = EchoService()
    service.ready = False
    with serving(service) as address:
        with pytest.raises(TargetError, match="answers, but is not ready"):
            describe(address, wait_s=0.0)

        async def run() -> ModelSignature:
            (channel,) = open_channels(address, 1, None)
            async with channel:
                waiting = asyncio.create_task(wait_for_model(channel, address, None, 1e6))
                await asyncio.wait({waiting}, timeout=0.05)
                assert not waiting.done()
                service.ready = True
                return await waiting

        assert asyncio.run(run()).name == "echo"


def test_a_model_that_is_ready_is_called_though_another_of_its_server_is_not() -> None:
    class WithABrokenModel(EchoService):
        def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
            return messages.ServerReadyResponse(ready=False)

    with serving(WithABrokenModel()) as address:
        assert describe(address, "echo", wait_s=0.0).name == "echo"
        with pytest.raises(TargetError, match="answers, but is not ready"):
            describe(address, wait_s=0.0)


def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"cannot read the TLS certificates .*ca\.pem: No such file"):
        open_channels("127.0.0.1:1", 1, tmp_path / "ca.pem")
