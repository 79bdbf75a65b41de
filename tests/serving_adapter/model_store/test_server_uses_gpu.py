"""`rrl-serve --device cuda` has its weights on the device once: on a pretended one, and on a real one."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from serving_adapter import model_store
from serving_adapter.model_store import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.torch_side.device_tensors import ParametersOnDevice
from serving_adapter.server.workers import worker, zygote
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.zygote import Zygote
from serving_adapter.tensors import TensorSpec
from tests.support.servers.embeddings import embedding
from tests.support.stores.fake_cuda import client_of, store_with_a_gpu
from tests.support.stores.running_store import Seen, stores
from tests.support.stores.store_clients import default_client_of
from tests.support.stores.store_in_process import PLENTY
from tests.support.stores.weights_files import in_repository, some_weights
from tests.support.waiting import until

GPU = "cuda:0"
WIDTH = 64


def module(seed: int = 0) -> nn.Module:
    """Tensors that are tied, transposed and laid out otherwise, and buffers."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(1), nn.Linear(8 * 36, WIDTH)).eval()
    net[0] = cast(Any, net[0]).to(memory_format=torch.channels_last)
    net[3].weight = nn.Parameter(torch.randn(8 * 36, WIDTH).t())
    return net


def served() -> tuple[nn.Module, list[TensorSpec]]:
    return module(), [TensorSpec("x", "FP32", (3, 8, 8))]


def weight_bytes() -> int:
    return sum(p.numel() * p.element_size() for p in module().parameters())


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    root, cache = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("cache")
    in_repository(root, "net", "1", some_weights())
    with store_with_a_gpu(cache, f"file://{root}", PLENTY) as endpoint:
        yield endpoint


@pytest.fixture
def seen(endpoint, monkeypatch):
    with client_of(endpoint) as client, default_client_of(endpoint.folder, monkeypatch):
        yield Seen(client)


@pytest.fixture
def make_zygote(monkeypatch):
    """Zygotes for a device that torch does not see here, in this process."""
    monkeypatch.setattr(zygote, "_check_device", lambda device: None)
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as sockets:

        def make() -> Zygote:
            ours, _ = (sockets.enter_context(end) for end in socket.socketpair())
            made = Zygote(ours)
            made.device = GPU
            return made

        yield make
    torch.set_num_threads(threads)


def on_gpu(shared: ParametersOnDevice | None) -> ParametersOnDevice:
    assert shared is not None
    return shared


def test_the_same_parameters_are_on_the_device_once(seen):
    first, second = (on_gpu(model_store.share_on_device(module(0), name, GPU)) for name in "ab")
    assert seen.references == 2
    assert weight_bytes() <= seen.tier("gpu").used_bytes <= weight_bytes() + 64 * len(first.parameters)
    other = on_gpu(model_store.share_on_device(module(1), "c", "cuda"))
    assert seen.tier("gpu").used_bytes >= 2 * weight_bytes()
    for shared in (first, second, other):
        assert shared.opened.device == GPU
        shared.opened.give_back()
    until(lambda: seen.references == 0)
    assert seen.tier("gpu").used_bytes == 0  # nobody could ask for them again


def test_a_worker_computes_with_what_lies_on_the_device(seen):
    """Its memory is that of a device here; every weight in it is twice the module's."""
    net, x = module(), torch.randn(2, 3, 8, 8)
    shared = on_gpu(model_store.share_on_device(net, "a", GPU))
    memory = torch.zeros(shared.opened.segments[0].size_bytes, dtype=torch.uint8)
    for parameter, tensor in zip(shared.parameters, shared.opened.tensors, strict=True):
        doubled = (2 * parameter.detach()).as_strided((parameter.numel(),), (1,)).view(torch.uint8)
        memory[tensor.offset_bytes : tensor.offset_bytes + len(doubled)] = doubled
    expected = module()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.mul_(2)
    strides = [p.stride() for p in net.parameters()]
    shared.put(lambda opened: memory)
    end = memory.data_ptr() + len(memory)
    assert all(memory.data_ptr() <= p.data_ptr() < end for p in net.parameters())
    assert [p.stride() for p in net.parameters()] == strides
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected(x))
    shared.opened.give_back()


def test_a_process_that_cannot_use_the_device_gives_the_model_back(seen, monkeypatch):
    def refused() -> None:
        raise RuntimeError("no CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "init", refused)
    with pytest.raises(RuntimeError, match="no CUDA GPUs"):
        model_store.open("net", "1", device=GPU)
    until(lambda: seen.references == 0, "the reference returns")
    seen.client.call("Evict", pb.EvictRequest(address=pb.Address(name="net"), tier="gpu"))


def test_a_zygote_has_the_store_hold_its_models_on_the_device(seen, make_zygote):
    zygotes = [make_zygote() for _ in range(2)]
    models = [each._build(ModelReference(f"{__name__}:served")) for each in zygotes]
    (first,), (second,) = (each.on_device for each in zygotes)
    assert first.opened.segments[0].cuda_handle == second.opened.segments[0].cuda_handle
    assert seen.tier("gpu").used_bytes < 2 * weight_bytes()
    assert not torch.cuda.is_initialized()  # as it forks
    for shared in (first, second):
        shared.opened.give_back()
    del models


def test_without_a_gpu_tier_each_worker_copies_and_the_log_says_so(
    tmp_path, monkeypatch, caplog, make_zygote
):
    with stores(tmp_path) as start, default_client_of(start().folder, monkeypatch):
        alone = make_zygote()
        model = alone._build(ModelReference(f"{__name__}:served"))
        assert alone.on_device == []
        assert "each worker copies the weights" in caplog.text
        assert "rrl-store serve --gpu-bytes" in caplog.text
        del model
        with pytest.raises(StoreError, match="cannot open models on 'cuda:0'"):
            model_store.share_on_device(module(), "a", GPU)


def test_a_device_that_opens_no_memory_of_others_is_copied_to(caplog):
    def put() -> None:
        raise RuntimeError("cuIpcOpenMemHandle_v2 failed with CUDA error 801")

    worker._put(SimpleNamespace(put=put))  # type: ignore[arg-type]
    assert "cannot be shared with this process: cuIpcOpenMemHandle_v2" in caplog.text


def test_intermediate_results_are_inferred_without_computing():
    net = nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 5), nn.Sigmoid())
    rows = 4
    alive_at_once = 4 * rows * (100 + 100)  # what the first layer answers, and its ReLU
    assert model_store.intermediate_bytes(net, torch.ones(rows, 10)) == alive_at_once
    in_place = nn.Sequential(nn.Linear(10, 100), nn.ReLU(inplace=True), nn.Linear(100, 5))
    assert model_store.intermediate_bytes(in_place, torch.ones(rows, 10)) == 4 * rows * (100 + 5)
    assert all(p.device.type == "cpu" for p in net.parameters())


def test_they_go_to_the_store_with_the_question(seen):
    with pytest.raises(StoreError, match="intermediate_bytes"):
        model_store.open("a", device=GPU, intermediate_bytes=-1)
    with pytest.raises(model_store.UnknownModel):
        model_store.open("a", device=GPU, intermediate_bytes=1 << 20)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
def test_workers_on_a_real_device_share_one_copy(tmp_path, monkeypatch, start_server):
    token_ids = np.random.default_rng(0).integers(1000, 20000, (3, 24))
    monkeypatch.setenv("RRL_STORE", "off")
    expected = embedding(start_server("--model", "minilm").address, token_ids)
    with stores(tmp_path) as start:
        store = start("--gpu-bytes", "4G", "--host-bytes", "1G")
        monkeypatch.setenv("RRL_STORE", str(store.folder))
        with store.client() as client:
            seen = Seen(client)
            servers = [
                start_server("--model", "minilm", "--device", "cuda", "--instances", 2) for _ in range(2)
            ]
            for server in servers:
                np.testing.assert_allclose(embedding(server.address, token_ids), expected, atol=1e-3)
            tier = seen.tier("gpu")
            (model,) = {m.size_bytes for m in seen.models() if "gpu" in m.tiers}
            assert tier.used_bytes == model
            for server in servers:
                server.stop()
            until(lambda: seen.tier("gpu").used_bytes == 0)
