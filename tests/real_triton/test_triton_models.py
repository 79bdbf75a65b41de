"""Our models in Triton's Python backend answer what our own server answers."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages

from scripts.triton_server.repository import ModelSpec
from serving_adapter.codecs import CODECS
from serving_adapter.model_configuration import knob_values
from tests.support.servers.running_server import start
from tests.support.servers.triton_served import LONG_S, Served
from tests.support.waiting import until


def answer(served, name, datatype, rows):
    """The model's output for a request."""
    request = messages.ModelInferRequest(model_name=served.model)
    request.inputs.add(name=name, datatype=datatype, shape=rows.shape)
    request.raw_input_contents.append(rows.astype(CODECS[datatype].dtype).tobytes())
    reply = served.stub.ModelInfer(request, timeout=LONG_S)
    return np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(reply.outputs[0].shape)


REAL: dict[str, Any] = {
    # The model's input, its type, requests that share a batch, and one that is refused in it.
    "minilm": ("token_ids", "INT64", [(1, 12), (1, 31), (2, 7), (1, 12)], [(1, 513)]),
    "efficientnet_lite0": ("image", "FP32", [(1, 3, 224, 224)] * 2, []),
}


def size(model):
    """Of the batch that holds all requests."""
    return sum(shape[0] for shapes in REAL[model][2:] for shape in shapes)


@pytest.fixture(scope="module")
def servers(triton):
    """Both servers with the real models; Triton's wait until a batch is full, ours do not."""
    with ThreadPoolExecutor() as starts, contextlib.ExitStack() as stack:
        ours = starts.submit(start, *(f"--model={model}" for model in REAL))
        theirs = [Served(triton.address, triton.metrics_url, model, triton.log) for model in REAL]
        knobs = [{"max_batch_size": size(model), "max_queue_delay_us": 10_000_000} for model in REAL]
        specs = [ModelSpec(model, knobs=of_model) for model, of_model in zip(REAL, knobs, strict=True)]
        list(starts.map(lambda model, spec: model.load(spec.config(model.model)), theirs, specs))
        output = ours.result().process.stdout
        assert output is not None
        stack.callback(output.close)
        stack.callback(ours.result().stop)
        yield ours.result(), triton
        for model in theirs:
            model.stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name=model.model))
            model.close()


@pytest.mark.parametrize("model", REAL)
def test_requests_that_share_a_batch_are_answered_as_by_our_own_server(model, servers, serve):
    """Whatever their lengths; one that is refused in their batch does not harm the others."""
    ours, theirs = (serve(server, model) for server in servers)
    name, datatype, shapes, refused = REAL[model]
    rng = np.random.default_rng(0)
    scale = 1 if datatype == "INT64" else 10_000
    requests = [rng.integers(1000, 20_000, shape) / scale for shape in shapes]
    with ThreadPoolExecutor() as clients:
        together = [clients.submit(answer, theirs, name, datatype, request) for request in requests]
        for shape in refused:
            with pytest.raises(grpc.RpcError, match="'token_ids' may be 512 long, got 513"):
                answer(theirs, name, datatype, np.ones(shape))
    until(theirs.batch_sizes, "a batch in Triton's statistics, which come a moment after its answers")
    assert theirs.batch_sizes() == {size(model)}
    for request, got in zip(requests, together, strict=True):
        wanted = answer(ours, name, datatype, request)
        np.testing.assert_allclose(got.result(), wanted, rtol=1e-4, atol=1e-4)


def test_the_model_of_the_quick_start_adds_and_subtracts_and_has_no_threads_to_set(triton, serve):
    served = serve(triton, "add_sub")
    pairs = np.arange(32, dtype=np.float32).reshape(2, 1, 16)
    request = messages.ModelInferRequest(model_name="add_sub")
    for k, values in enumerate(pairs):
        request.inputs.add(name=f"INPUT__{k}", datatype="FP32", shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
    reply = served.stub.ModelInfer(request, timeout=LONG_S)
    answers = [np.frombuffer(raw, np.float32) for raw in reply.raw_output_contents]
    found = {output.name: values for output, values in zip(reply.outputs, answers, strict=True)}
    np.testing.assert_array_equal(found["OUTPUT__0"], pairs.sum(axis=0)[0])
    np.testing.assert_array_equal(found["OUTPUT__1"], (pairs[0] - pairs[1])[0])
    assert knob_values(served.config()).keys() == {"instances", "max_batch_size", "max_queue_delay_us"}
