"""What a model does wrong is told to whom it concerns; everybody else gets an answer, and nobody waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.models import wayward
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

MODEL = "wayward"
BATCH = 4  # requests of one row that make a full batch; batches are not run before they are full
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def front() -> Iterator[RunningServer]:
    """Two workers; a batch that is not full waits for as long as it may."""
    waiting = ("--max-batch-size", BATCH, "--max-queue-delay-us", 10_000_000)
    models = []
    for name in (MODEL, "boxes", "inverted", "fixed_at_first"):
        models += ["--model", f"tests.support.models.wayward:{name}"]
    running = start(*models, *waiting, "--instances", 2)
    yield running
    assert running.stop() == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


def request_of(value: float, rows: int = BATCH, model: str = MODEL) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[rows, wayward.ITEM_SIZE])
    request.raw_input_contents.append(np.full((rows, wayward.ITEM_SIZE), value, np.float32).tobytes())
    return request


def ask(
    server: RunningServer, *requests: pb.ModelInferRequest
) -> list[pb.ModelInferResponse | grpc.RpcError]:
    """Sends them at once; the answers or errors in their order."""
    with grpc.insecure_channel(server.address) as channel, ThreadPoolExecutor(len(requests)) as threads:
        stub = GRPCInferenceServiceStub(channel)

        def one(request: pb.ModelInferRequest) -> pb.ModelInferResponse | grpc.RpcError:
            try:
                return stub.ModelInfer(request, timeout=PATIENCE_S)
            except grpc.RpcError as error:
                return error

        return list(threads.map(one, requests))


def ask_a_batch(server: RunningServer, *values: float) -> list[pb.ModelInferResponse | grpc.RpcError]:
    """One request of one row for each value, all in one batch."""
    assert len(values) == BATCH
    return ask(server, *(request_of(value, rows=1) for value in values))


def is_double(answer: pb.ModelInferResponse | grpc.RpcError, value: float) -> bool:
    assert isinstance(answer, pb.ModelInferResponse), answer
    at = [output.name for output in answer.outputs].index("double")
    return bool((np.frombuffer(answer.raw_output_contents[at], np.float32) == 2 * value).all())


def told(answer: pb.ModelInferResponse | grpc.RpcError) -> str:
    assert isinstance(answer, grpc.RpcError), answer
    assert answer.code() is grpc.StatusCode.INTERNAL
    return answer.details()


WRONG = [
    (wayward.ANOTHER_OUTPUT, "the model answered the outputs 'double', 'first', 'warning' for this batch"),
    (wayward.MISSING_OUTPUT, "the model answered the outputs 'double' for this batch"),
    (wayward.OTHER_TYPE, "output 'double' is INT32 for this batch and FP32 for the example input"),
    (wayward.OTHER_FLOAT, "output 'double' is FP16 for this batch and FP32 for the example input"),
    (wayward.UNKNOWN_TYPE, "output 'double' is of type complex64, which is not served"),
    (wayward.OTHER_RANK, "an item of output 'first' has 0 dimensions in this batch and 1 for the example"),
    (wayward.FEWER_ROWS, "output 'double' has shape [5, 16] for a batch of 4"),
    (wayward.RAISES, f"the model raised KeyError: '{wayward.REASON}'"),
    (wayward.EXITS, "the model raised SystemExit: enough"),
    (wayward.INTERRUPTS, "the model raised KeyboardInterrupt"),
    (wayward.SAYS_NOTHING, "the model raised Unspeakable"),
]


@pytest.mark.parametrize(("value", "sentence"), WRONG)
def test_an_answer_that_is_not_as_described_is_an_error_that_says_so(front, value, sentence):
    (answer,) = ask(front, request_of(value))
    assert told(answer).startswith(sentence)


def test_a_long_complaint_reaches_the_client_with_its_beginning_and_its_end(front):
    (answer,) = ask(front, request_of(wayward.SAYS_MUCH))
    assert told(answer).startswith("the model raised ValueError: begin ż")
    assert told(answer).endswith("end")
    assert len(told(answer).encode()) < 1100


@pytest.mark.parametrize("value", [wayward.RAISES, wayward.ANOTHER_OUTPUT, wayward.CRASHES])
def test_the_others_of_a_bad_request_s_batch_are_answered(front, value):
    before = front.counted("rrl_worker_replacements", model=MODEL)
    good, bad, *more = ask_a_batch(front, 1.0, value, 2.0, 3.0)
    assert [is_double(answer, i) for i, answer in enumerate([good, *more], 1)] == [True] * 3
    assert told(bad)
    replaced = front.counted("rrl_worker_replacements", model=MODEL) - before
    assert replaced == (3 if value == wayward.CRASHES else 0)


def test_nothing_stays_in_flight_and_failures_are_counted_by_reason(front):
    before = front.counted("nv_inference_request_failure", model=MODEL, reason="BACKEND")
    ask_a_batch(front, wayward.RAISES, wayward.ANOTHER_OUTPUT, 1.0, wayward.OTHER_TYPE)
    after = front.counted("nv_inference_request_failure", model=MODEL, reason="BACKEND")
    assert after - before == 3
    assert front.counted("rrl_in_flight_request_count", model=MODEL) == 0


def test_a_worker_on_which_everything_fails_is_replaced(front):
    before = front.counted("rrl_worker_replacements", model=MODEL)
    assert (
        told(ask(front, request_of(wayward.BREAKS))[0]) == "the model raised RuntimeError: the device is lost"
    )

    def is_replaced() -> bool:
        ask(front, request_of(1.0), request_of(1.0))
        return front.counted("rrl_worker_replacements", model=MODEL) > before

    until(is_replaced, "the broken worker is replaced")
    assert all(is_double(answer, 5.0) for answer in ask(front, *(request_of(5.0) for _ in range(20))))


def test_a_worker_that_answers_twice_is_replaced_and_no_answer_is_taken_for_another(front):
    before = front.counted("rrl_worker_replacements", model=MODEL)
    (answer,) = ask(front, request_of(wayward.FORKS))
    assert is_double(answer, wayward.FORKS)
    values = [float(i) for i in range(20)]
    answers = ask(front, *map(request_of, values))
    assert all(is_double(answer, value) for value, answer in zip(values, answers, strict=True))
    until(lambda: front.counted("rrl_worker_replacements", model=MODEL) == before + 1)


def test_a_worker_that_answers_another_batch_than_it_holds_is_replaced(front):
    before = front.counted("rrl_worker_replacements", model=MODEL)
    confused, *answers = ask(front, *map(request_of, [wayward.SAYS_AN_OLD_ANSWER, 1.0, 2.0, 3.0]))
    assert told(confused).startswith("3 workers ended while they ran this batch")
    assert all(is_double(answer, value) for value, answer in enumerate(answers, 1))
    assert front.counted("rrl_worker_replacements", model=MODEL) == before + 3
    assert front.counted("rrl_in_flight_request_count", model=MODEL) == 0


@pytest.fixture(scope="module")
def redundant() -> Iterator[RunningServer]:
    """A model that ends its process, and what the modes of resilience need beside it."""
    models = ("--model", "noop", "--model-option", "crash_on=7", "--parity-model", "noop")
    running = start(*models, "--instances", 2)
    yield running
    assert running.stop() == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


@pytest.mark.parametrize("mode", ["replication", "hedging", "parity"])
def test_in_every_mode_a_request_that_ends_workers_ends_few_and_fails_alone(redundant, mode):
    config = {
        "max_batch_size": BATCH,
        "instance_group": [{"count": 2}],
        "dynamic_batching": {"max_queue_delay_microseconds": 10_000_000},
        "parameters": {"RESILIENCE_MODE": {"string_value": mode}},
    }
    load = pb.RepositoryModelLoadRequest(model_name="noop")
    load.parameters["config"].string_param = json.dumps(config)
    with grpc.insecure_channel(redundant.address) as channel:
        GRPCInferenceServiceStub(channel).RepositoryModelLoad(load)
    before = redundant.counted("rrl_worker_replacements")
    requests = [request_of(value, rows=1, model="noop") for value in (1.0, 7.0, 2.0, 3.0)]
    for request in requests:
        request.parameters["exact"].bool_param = True
    good, bad, *more = ask(redundant, *requests)
    for request, answer in zip([requests[0], *requests[2:]], [good, *more], strict=True):
        assert isinstance(answer, pb.ModelInferResponse), answer
        assert answer.raw_output_contents == request.raw_input_contents
    assert told(bad) == "3 workers ended while they ran this batch; check the model and the inputs"
    assert redundant.counted("rrl_in_flight_request_count") == 0
    until(lambda: redundant.counted("rrl_worker_replacements") - before == 3)


def test_what_a_client_gave_up_while_it_was_run_counts_as_canceled(start_server):
    server = start_server("--model", "sleep", "--model-option", "hang_on=7", "--instances", 2)
    request = request_of(7.0, rows=1, model="sleep")
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        running = stub.ModelInfer.future(request)
        until(lambda: server.counted("rrl_in_flight_request_count") == 1)
        until(lambda: server.counted("nv_inference_pending_request_count") == 0)
        running.cancel()
        until(lambda: server.counted("nv_inference_request_failure", reason="CANCELED") == 1)
        statistics = stub.ModelStatistics(pb.ModelStatisticsRequest(name="sleep")).model_stats[0]
        assert statistics.inference_stats.fail.count == 1
        assert stub.ModelInfer(request_of(2.0, rows=1, model="sleep"), timeout=PATIENCE_S)
    assert server.counted("rrl_in_flight_request_count") == 0
    assert server.counted("nv_inference_request_success") == 1
    assert server.counted("nv_inference_request_failure") == 1


def test_outputs_whose_size_follows_the_data_are_answered_and_described_as_such(front):
    with grpc.insecure_channel(front.address) as channel:
        described = GRPCInferenceServiceStub(channel).ModelMetadata(pb.ModelMetadataRequest(name="boxes"))
    assert list(described.outputs[0].shape) == [-1, -1, 4]
    for count in (1, 3):
        (answer,) = ask(front, request_of(count, model="boxes"))
        assert list(answer.outputs[0].shape) == [BATCH, count - 1, 4]


def test_a_size_that_an_answer_disproves_is_described_as_varying(front):
    name = "fixed_at_first"

    def described() -> tuple[list[int], list[int]]:
        with grpc.insecure_channel(front.address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            (metadata,) = stub.ModelMetadata(pb.ModelMetadataRequest(name=name)).outputs
            (config,) = stub.ModelConfig(pb.ModelConfigRequest(name=name)).config.output
            return list(metadata.shape), list(config.dims)

    assert described() == ([-1, 1, 2], [1, 2])
    for count in (1, 7, 3):
        (answer,) = ask(front, request_of(count, model=name))
        assert list(answer.outputs[0].shape) == [BATCH, count, 2]
    assert described() == ([-1, -1, 2], [-1, 2])


def test_any_byte_but_zero_is_true(front):
    request = request_of(0.0, model="inverted")
    request.inputs[0].datatype = "BOOL"
    sent = np.arange(BATCH * wayward.ITEM_SIZE, dtype=np.uint8)
    request.raw_input_contents[0] = sent.tobytes()
    (answer,) = ask(front, request)
    assert answer.raw_output_contents[0] == (sent == 0).tobytes()


BAD_MODELS = [
    ("half_precision", "the model failed on an example input: output 'output0' is of type complex64"),
    ("raising", f"the model failed on an example input: KeyError: '{wayward.REASON}'"),
    ("without_a_key", f"KeyError: '{wayward.REASON}'"),
    ("unlicensed", f"SystemExit: {wayward.REASON}"),
    ("without_waiting", f"the model failed on an example input: KeyError: '{wayward.REASON}'"),
]


@pytest.mark.parametrize(("factory", "sentence"), BAD_MODELS)
def test_a_model_that_cannot_be_served_says_why(factory, sentence):
    command = [
        sys.executable,
        "-m",
        "serving_adapter.server.command_line",
        "--port",
        "0",
        "--metrics-port",
        "0",
    ]
    model = ["--model", f"tests.support.models.wayward:{factory}"]
    ended = subprocess.run([*command, *model], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert f"model '{factory}' cannot be served: {sentence}" in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.endswith("is still being built")]
    assert len(lines) == 1


def test_what_a_model_prints_is_log_and_fails_nothing_when_nobody_reads_that():
    command = [sys.executable, "-m", "serving_adapter.server.command_line"]
    arguments = ["--port", "0", "--metrics-port", "0", "--model", "tests.support.models.wayward:printing"]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        told = process.stdout.readline()
        assert told.startswith("serving printing on ")
        assert f"{wayward.PRINTED}\n" in process.stderr
        process.stdout.close()
        process.stderr.close()
        with grpc.insecure_channel(told.split()[3].rstrip(",")) as channel:
            answer = GRPCInferenceServiceStub(channel).ModelInfer(request_of(1.0, model="printing"))
        assert answer.outputs[0].name == "output0"
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
