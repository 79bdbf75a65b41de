"""`rrl-serve` keeps its models' weights in the store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import torch
from torch import nn
from tritonclient.grpc import service_pb2 as triton
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.models.branches import parallel, torchscript
from tests.support.stores.running_store import Seen, stores
from tests.support.waiting import until

WIDTH = 512
WEIGHT_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


@pytest.fixture
def store(tmp_path, monkeypatch):
    with stores(tmp_path) as start:
        store = start()
        monkeypatch.setenv("RRL_STORE", str(store.folder))
        yield store


@pytest.fixture
def seen(store):
    with store.client() as client:
        yield Seen(client)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A TorchScript file of two linear layers that may run at once."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "linear.pt"
    module: Any = parallel([nn.Linear(WIDTH, WIDTH // 2) for _ in range(2)], torch.ones(1, WIDTH))
    with torchscript():
        module.save(str(path))
    specification = [{"name": "x", "datatype": "FP32", "shape": [WIDTH]}]
    path.with_suffix(".inputs.json").write_text(json.dumps(specification))
    return path


def request() -> triton.ModelInferRequest:
    request = triton.ModelInferRequest(model_name="linear")
    request.inputs.add(name="x", datatype="FP32", shape=[1, WIDTH])
    request.raw_input_contents.append(np.ones((1, WIDTH), np.float32).tobytes())
    return request


def expected(model_file) -> np.ndarray:
    with torchscript(), torch.no_grad():
        return torch.jit.load(str(model_file))(torch.ones(1, WIDTH)).numpy()


def answer(server) -> np.ndarray:
    with grpc.insecure_channel(server.address) as channel:
        reply = GRPCInferenceServiceStub(channel).ModelInfer(request(), timeout=60)
    return np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(1, WIDTH)


def change(server, instances: int, inter: int, intra: int) -> None:
    parameters = {"INTRA_OP_THREAD_COUNT": intra, "INTER_OP_THREAD_COUNT": inter}
    config = {
        "max_batch_size": 1,
        "instance_group": [{"count": instances}],
        "parameters": {name: {"string_value": str(value)} for name, value in parameters.items()},
    }
    load = triton.RepositoryModelLoadRequest(model_name="linear")
    load.parameters["config"].string_param = json.dumps(config)
    with grpc.insecure_channel(server.address) as channel:
        GRPCInferenceServiceStub(channel).RepositoryModelLoad(load, timeout=60)


def series(server) -> dict[str, float]:
    page = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
    rows = (row.rpartition(" ") for row in page.splitlines() if row.startswith("rrl_store_"))
    return {name: float(value) for name, _, value in rows}


def counters(seen) -> list[tuple[int, int, int]]:
    return [(tier.hits, tier.misses, tier.used_bytes) for tier in seen.stats().tiers]


def test_a_served_model_is_in_the_store_with_references(start_server, seen, model_file):
    server = start_server("--model", model_file)
    assert np.allclose(answer(server), expected(model_file), atol=1e-5)
    (model,) = seen.models()
    assert model.address.name == str(model_file)
    assert model.references == 1
    assert seen.tier().used_bytes >= WEIGHT_BYTES
    assert server.stop() == 0
    until(lambda: seen.references == 0)


def test_metrics_show_every_tier(start_server, seen, model_file):
    server = start_server("--model", model_file)
    shown = until(lambda: series(server))  # the store is given half a second for a page
    for tier in ("host", "disk", "remote"):
        for name in ("hits", "misses", "evictions", "used_bytes", "capacity_bytes"):
            assert f'rrl_store_{name}{{tier="{tier}"}}' in shown
    assert shown['rrl_store_used_bytes{tier="host"}'] == seen.tier().used_bytes
    assert shown['rrl_store_capacity_bytes{tier="host"}'] == 256 << 20


def test_changing_parallelism_reads_no_weights_again(start_server, seen, model_file):
    server = start_server("--model", model_file)
    before = counters(seen)
    for instances, inter, intra in ((3, 1, 1), (1, 2, 1), (2, 2, 2), (1, 1, 1)):
        change(server, instances, inter, intra)
        assert np.allclose(answer(server), expected(model_file), atol=1e-5)
        assert counters(seen) == before
    assert seen.references == 1


def test_workers_map_the_weights_instead_of_copying_them(start_server, seen, model_file):
    server = start_server("--model", model_file, "--instances", 3)
    for process in psutil.Process(server.process.pid).children(recursive=True):
        assert any("memfd:rrl-weights" in area.path for area in process.memory_maps(grouped=False))


def test_two_servers_of_one_model_share_its_memory(start_server, seen, model_file):
    first = start_server("--model", model_file)
    used_bytes = seen.tier().used_bytes
    second = start_server("--model", model_file)
    assert seen.tier().used_bytes == used_bytes
    assert seen.stats().deduplicated_bytes >= WEIGHT_BYTES
    assert seen.references == 2
    first.stop()
    until(lambda: seen.references == 1)
    assert np.allclose(answer(second), expected(model_file), atol=1e-5)


def test_a_server_that_is_killed_leaves_the_other_its_weights_and_no_reference(
    start_server, seen, model_file
):
    killed, other = start_server("--model", model_file), start_server("--model", model_file)
    used_bytes = seen.tier().used_bytes
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: seen.references == 1)
    assert np.allclose(answer(other), expected(model_file), atol=1e-5)
    change(other, 2, 2, 1)
    assert np.allclose(answer(other), expected(model_file), atol=1e-5)
    assert seen.tier().used_bytes == used_bytes
    other.stop()
    until(lambda: seen.references == 0)


def test_a_server_that_is_stopped_hinders_no_other_and_keeps_its_weights(start_server, seen, model_file):
    stopped, other = start_server("--model", model_file), start_server("--model", model_file)
    front = psutil.Process(stopped.process.pid)
    family = [front, *front.children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        change(other, 2, 2, 1)
        assert np.allclose(answer(other), expected(model_file), atol=1e-5)
        third = start_server("--model", model_file)
        assert np.allclose(answer(third), expected(model_file), atol=1e-5)
        assert seen.references == 3
        for server in (third, other):
            server.stop()
        until(lambda: seen.references == 1)
    finally:
        for process in family:
            process.resume()
    assert np.allclose(answer(stopped), expected(model_file), atol=1e-5)
    stopped.stop()
    until(lambda: seen.references == 0)


@pytest.mark.parametrize("how", ["--private-weights", "RRL_STORE=off"])
def test_weights_may_stay_private(start_server, seen, model_file, monkeypatch, how):
    if how == "RRL_STORE=off":
        monkeypatch.setenv("RRL_STORE", "off")
        server = start_server("--model", model_file)
    else:
        server = start_server("--model", model_file, how)
    assert np.allclose(answer(server), expected(model_file), atol=1e-5)
    assert seen.models() == []
    assert series(server) == {}
    assert not os.path.exists("off")


def test_a_store_that_cannot_be_had_keeps_no_server_from_starting(
    start_server, model_file, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / ("x" * 120), tmp_path / "file"):
        monkeypatch.setenv("RRL_STORE", str(folder))
        server = start_server("--model", model_file)
        assert np.allclose(answer(server), expected(model_file), atol=1e-5)
        assert series(server) == {}


def test_killing_the_store_loses_no_request(start_server, store, model_file):
    server = start_server("--model", model_file, "--instances", 2)

    async def drive() -> int:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            done = asyncio.Event()

            async def client() -> int:
                count = 0
                while not done.is_set():
                    reply = await stub.ModelInfer(request())
                    values = np.frombuffer(reply.raw_output_contents[0], np.float32)
                    assert np.allclose(values, expected_values, atol=1e-5)
                    count += 1
                return count

            clients = [asyncio.create_task(client()) for _ in range(4)]
            await stub.ModelInfer(request())
            store.stop(signal.SIGKILL)
            for _ in range(20):
                await stub.ModelInfer(request())
            done.set()
            return sum(await asyncio.gather(*clients))

    expected_values = expected(model_file)[0]
    assert asyncio.run(drive()) > 0
    change(server, 3, 1, 1)  # new workers need no store either
    assert np.allclose(answer(server), expected_values, atol=1e-5)
    assert series(server) == {}
