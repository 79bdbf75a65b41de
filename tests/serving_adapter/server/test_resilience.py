"""The resilience modes on a real server: equal when nothing fails, nothing lost when workers do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.flags.parsing import parse
from serving_adapter.parity.datasets import load_dataset
from serving_adapter.server.command_line import prepared
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.redundancy.settings import MODES
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import eventually, until

SLEEP = ("--model", "sleep", "--model-option", "sleep.ms=5", "--intra-op-threads", 1)
MISFIT = ("--parity-model", "mlp", "--model-option", "mlp.size=2")
REDUNDANT = ("--parity-model", "sleep", "--backup-model", "sleep")
PARITY_FIRST = sorted(MODES, key=lambda mode: mode != "parity")  # the server starts so


def request_of(values: np.ndarray, exact: bool | None = None) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="sleep")
    request.inputs.add(name="x", datatype="FP32", shape=list(values.shape))
    request.raw_input_contents.append(values.astype(np.float32).tobytes())
    if exact is not None:
        request.parameters["exact"].bool_param = exact
    return request


def answer_of(response: pb.ModelInferResponse) -> np.ndarray:
    (output,) = response.outputs
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(tuple(output.shape))


def values_of(i: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(i).integers(-50, 50, (rows, 16)).astype(np.float32)


def override(
    instances: int = 4, max_batch_size: int = 1, **resilience: object
) -> pb.RepositoryModelLoadRequest:
    parameters = {f"RESILIENCE_{name.upper()}": {"string_value": str(v)} for name, v in resilience.items()}
    parameters["INTRA_OP_THREAD_COUNT"] = {"string_value": "1"}
    group = [{"count": instances}]
    config = {"max_batch_size": max_batch_size, "instance_group": group, "parameters": parameters}
    request = pb.RepositoryModelLoadRequest(model_name="sleep")
    request.parameters["config"].string_param = json.dumps(config)
    return request


async def answers(stub, count: int, rows: int = 1, exact: bool | None = None) -> list[pb.ModelInferResponse]:
    """`count` requests at once; each answer is checked to be that of its own request."""
    responses = await asyncio.gather(
        *(stub.ModelInfer(request_of(values_of(i, rows), exact)) for i in range(count))
    )
    for i, response in enumerate(responses):
        if "default" not in response.parameters:
            np.testing.assert_allclose(answer_of(response), values_of(i, rows), rtol=1e-4, atol=1e-3)
    return responses


def on(server, drive):
    async def run():
        async with grpc.aio.insecure_channel(server.address) as channel:
            return await drive(GRPCInferenceServiceStub(channel))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[RunningServer]:
    """A server that can be in every mode, of which each test says its own."""
    default = tmp_path_factory.mktemp("default") / "default.npz"
    np.savez(default, y=np.full(16, 7.0, np.float32))
    running = start(
        *SLEEP, *REDUNDANT, "--parity-model", "sleep", "--instances", 4, "--resilience", "parity",
        "--default-answer", default, "--worker-timeout-s", 3000,
    )  # fmt: skip
    yield running
    assert running.counted("nv_inference_request_failure") == 0
    assert running.stop() == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


def deployed_workers(server: RunningServer) -> list[psutil.Process]:
    """Those of its first zygote; the others are of redundant models."""
    zygotes = psutil.Process(server.process.pid).children()
    return min(zygotes, key=psutil.Process.create_time).children()


def put_in_force(server: RunningServer, instances: int = 4, **resilience: object) -> None:
    with grpc.insecure_channel(server.address) as channel:
        GRPCInferenceServiceStub(channel).RepositoryModelLoad(override(instances, 1, **resilience))


@contextmanager
def stalled(server: RunningServer, workers: int) -> Iterator[None]:
    """So many of the deployed model's workers stand still meanwhile, and answer what they hold after it."""
    until(lambda: server.counted("rrl_in_flight_request_count") == 0)
    still = deployed_workers(server)[:workers]
    assert len(still) == workers
    for process in still:
        process.suspend()
    try:
        yield
    finally:
        for process in still:
            process.resume()
        until(lambda: server.counted("rrl_in_flight_request_count") == 0)


@pytest.fixture(scope="module")
def mode(request, guarded) -> str:
    """The mode that the server is in: one after the other, each for all tests of it."""
    return request.param


@pytest.mark.parametrize("mode", PARITY_FIRST, indirect=True, scope="module")
def test_every_mode_gives_every_request_its_own_answer_when_nothing_fails(guarded, mode):
    patience = 60_000_000  # so long that only what is unavailable is approximated
    put_in_force(guarded, mode=mode, late_after_us=patience)
    before = guarded.counted("nv_inference_request_success")

    async def drive(stub):
        plain = await answers(stub, 40)
        larger = await answers(stub, 10, rows=3)
        strict = await answers(stub, 40, exact=True)
        return plain + larger, strict

    plain, strict = on(guarded, drive)
    assert all(not response.parameters for response in strict)
    if mode != "approximate-backup":
        assert all(not response.parameters for response in plain)
    assert guarded.counted("nv_inference_request_success") - before == 90
    assert guarded.counted("rrl_in_flight_request_count") == 0


@pytest.mark.parametrize(
    "mode", ["parity", "hedging", "replication", "approximate-backup"], indirect=True, scope="module"
)
def test_stalled_workers_delay_no_answer_that_the_mode_can_give_otherwise(guarded, mode):
    """One of the deployed workers stands still; only redundancy can answer what it holds."""
    put_in_force(guarded, mode=mode)
    before = {name: guarded.counted(name) for name in ("rrl_reconstructed_count", "rrl_batch_copies")}

    async def drive(stub):
        responses = []
        for _ in range(20):
            responses += await asyncio.wait_for(answers(stub, 12), 60)
        return responses

    with stalled(guarded, workers=1):
        responses = on(guarded, drive)
        counted = {name: guarded.counted(name) - count for name, count in before.items()}
    origins = {name for response in responses for name in response.parameters}
    if mode == "parity":
        assert origins == {"reconstructed"}
        assert counted["rrl_reconstructed_count"] >= 1
    elif mode == "approximate-backup":
        assert origins == {"backup"}
    else:
        assert origins == set()
        assert counted["rrl_batch_copies"] >= 1


def test_modes_change_under_load_and_no_request_is_lost(guarded):
    changes: list[dict[str, Any]] = [
        {"mode": "approximate-backup"},
        {"mode": "equal-resources", "instances": 2},
        {"mode": "replication"},
        {"mode": "hedging", "late_percentile": 90},
        {"mode": "default-answer", "late_after_us": 50_000_000},
        {"mode": "none"},
        {"mode": "parity"},
        {"mode": "parity", "k": 4, "late_after_us": 1000},
        {"mode": "parity", "k": 3, "r": 1, "redundant_instances": 3},
    ]

    async def drive(stub):
        done, seen = asyncio.Event(), []

        async def client() -> int:
            count = 0
            while not done.is_set():
                count += len(await answers(stub, 3))
            return count

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for change in changes:
            await stub.RepositoryModelLoad(override(**change))
            config = (await stub.ModelConfig(pb.ModelConfigRequest(name="sleep"))).config
            seen.append(
                {
                    name: config.parameters[f"RESILIENCE_{name.upper()}"].string_value
                    for name in change
                    if name != "instances"
                }
            )
            await answers(stub, 20)
        done.set()
        return sum(await asyncio.gather(*clients)), seen

    answered, seen = on(guarded, drive)
    assert seen == [{n: str(v) for n, v in c.items() if n != "instances"} for c in changes]
    assert answered > 0
    assert guarded.counted("nv_inference_request_failure") == 0
    batches = guarded.counted("rrl_redundant_batches")
    put_in_force(guarded, mode="parity")
    assert guarded.counted("rrl_redundant_batches") >= batches > 0


@pytest.mark.parametrize(
    ("overflow", "max_batch_size", "helps"), [(1, 1, True), (0, 1, False), (1, 4, False)]
)
def test_redundant_workers_run_single_requests_when_all_others_are_busy(
    guarded, overflow, max_batch_size, helps
):
    change = override(
        2, max_batch_size, mode="parity", redundant_instances=2, overflow=overflow, late_after_us=60_000_000
    )
    busy = {"batch_size": "1", "busy_instances": "3"}
    before = guarded.counted("rrl_batch_count", **busy)

    async def drive(stub):
        await stub.RepositoryModelLoad(change)
        await eventually(lambda: len(deployed_workers(guarded)) == 2)  # those retired have ended
        with stalled(guarded, workers=2):
            held = [asyncio.ensure_future(stub.ModelInfer(request_of(values_of(i)))) for i in range(3)]
            if helps:
                await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            else:
                await eventually(lambda: guarded.counted("rrl_in_flight_request_count") == 3)
        await asyncio.gather(*held)

    on(guarded, drive)
    assert (guarded.counted("rrl_batch_count", **busy) > before) == helps


def test_two_parities_give_both_answers_of_a_group(guarded):
    put_in_force(guarded, mode="parity", r=2, late_after_us=10_000, overflow=0)
    with stalled(guarded, workers=4):
        responses = on(guarded, lambda stub: asyncio.wait_for(answers(stub, 4), 60))
    assert all("reconstructed" in response.parameters for response in responses)


def test_batches_in_flight_keep_their_protection_when_the_settings_change(guarded):
    put_in_force(guarded, mode="parity", late_after_us=5_000_000)
    before = guarded.counted("nv_inference_request_success")

    async def drive(stub):
        pending = asyncio.ensure_future(answers(stub, 12))
        while guarded.counted("nv_inference_request_success") < before + 8:
            await asyncio.sleep(0)
        await stub.RepositoryModelLoad(
            override(mode="parity", group_timeout_us=50_000, late_after_us=4_000_000)
        )
        return await asyncio.wait_for(pending, 60)

    with stalled(guarded, workers=1):
        responses = on(guarded, drive)
    assert sum("reconstructed" in response.parameters for response in responses) == 1


def test_a_request_that_refuses_approximation_waits_for_the_exact_answer(guarded):
    put_in_force(guarded, mode="parity", late_after_us=10_000)

    async def drive(stub):
        with stalled(guarded, workers=1):
            tolerant = await asyncio.wait_for(answers(stub, 8), 60)
        before = guarded.counted("nv_inference_request_success")
        with stalled(guarded, workers=1):
            asked = asyncio.ensure_future(answers(stub, 8, exact=True))
            await eventually(lambda: guarded.counted("nv_inference_request_success") - before == 7)
            # The next ones are reconstructed where they have to be; what is held is still not answered.
            tolerant += await asyncio.wait_for(answers(stub, 8), 60)
            assert guarded.counted("rrl_in_flight_request_count") == 1
        return tolerant, await asked

    tolerant, strict = on(guarded, drive)
    assert any("reconstructed" in response.parameters for response in tolerant)
    assert all(not response.parameters for response in strict)


def test_workers_killed_again_and_again_fail_no_request_and_every_answer_is_right(guarded):
    put_in_force(guarded, mode="parity")
    before = guarded.counted("rrl_worker_replacements")

    def is_replaced(wanted: int) -> bool:
        return guarded.counted("rrl_worker_replacements") >= wanted

    def has_begun(asked: asyncio.Future) -> bool:
        """They may all be answered before one is seen in flight."""
        return asked.done() or guarded.counted("rrl_in_flight_request_count") > 0

    async def drive(stub):
        for wanted in range(before + 1, before + 9):
            asked = asyncio.ensure_future(answers(stub, 20))
            await eventually(partial(has_begun, asked))
            deployed_workers(guarded)[0].kill()
            await asked
            await eventually(partial(is_replaced, wanted))

    on(guarded, drive)
    assert guarded.counted("nv_inference_request_failure") == 0


def test_a_late_request_gets_the_operators_default_answer(guarded):
    put_in_force(guarded, mode="default-answer", late_after_us=50_000)
    before = guarded.counted("rrl_default_count")

    async def drive(stub):
        with stalled(guarded, workers=4):
            late = await answers(stub, 3, rows=2)
        return late, await answers(stub, 1, exact=True)

    late, strict = on(guarded, drive)
    for response in late:
        assert response.parameters["default"].bool_param
        np.testing.assert_array_equal(answer_of(response), np.full((2, 16), 7.0))
    assert not strict[0].parameters
    assert guarded.counted("rrl_default_count") - before == 3


def test_the_exact_parameter_must_be_a_bool(guarded):
    request = request_of(values_of(0))
    request.parameters["exact"].string_param = "yes"
    with grpc.insecure_channel(guarded.address) as channel, pytest.raises(grpc.RpcError) as refused:
        GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert "'exact' must be a bool_param" in refused.value.details()


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "magic"}, "resilience mode 'magic' is unknown; known: none, "),
    ({"mode": "parity", "k": 1}, "RESILIENCE_K must be a whole number from 2 to 64, got 1"),
    ({"mode": "parity", "k": 5}, "RESILIENCE_K=5 needs at least 5 instances"),
    ({"mode": "parity", "k": "two"}, "RESILIENCE_K.string_value must be a whole number, got 'two'"),
    ({"mode": "parity", "r": 2}, "needs a parity model of k=2, row 1; the server was started with sleep"),
    (
        {"mode": "parity", "r": 3, "k": 2},
        "RESILIENCE_R=3 is more than RESILIENCE_K=2, the size",
    ),
    (
        {"mode": "parity", "r": 8, "k": 8, "instances": 8},
        "RESILIENCE_K=8 with RESILIENCE_R=8 weighs queries up to k^(r-1)",
    ),
    ({"mode": "default-answer"}, "needs RESILIENCE_LATE_AFTER_US"),
    ({"mode": "default-answer", "late_after_us": 9}, "start the server with --default-answer FILE"),
    ({"modes": "parity"}, "parameters.RESILIENCE_MODES is no setting of resilience"),
    ({"mode": "hedging", "late_percentile": 101}, "from 0 to 100, got 101"),
    ({"mode": "approximate-backup"}, "start the server with --backup-model"),
]


def test_a_wrong_setting_is_refused_in_one_sentence_and_changes_nothing(start_server):
    server = start_server(*SLEEP, "--parity-model", "sleep", "--instances", 4)

    async def drive(stub):
        for change, sentence in WRONG_SETTINGS:
            with pytest.raises(grpc.RpcError) as refused:
                await stub.RepositoryModelLoad(override(**change))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert sentence in refused.value.details()
        config = (await stub.ModelConfig(pb.ModelConfigRequest(name="sleep"))).config
        return config.parameters["RESILIENCE_MODE"].string_value

    assert on(server, drive) == "none"


def test_a_parity_model_that_does_not_fit_is_refused_and_the_old_mode_stays(start_server):
    server = start_server(*SLEEP, "--instances", 2, *MISFIT)

    async def drive(stub):
        with pytest.raises(grpc.RpcError) as refused:
            await stub.RepositoryModelLoad(override(instances=2, mode="parity"))
        await answers(stub, 4)
        return refused.value.details()

    assert "the inputs of mlp do not fit the deployed model's" in on(server, drive)
    (zygote,) = psutil.Process(server.process.pid).children()  # that of the parity model is gone
    assert zygote.is_running()


def truncated(tmp_path: Path) -> Path:
    path = tmp_path / "parity.safetensors"
    weights = save({"w": torch.zeros(1000)}, metadata={"model": "mlp"})
    path.write_bytes(weights[:-100])
    return path


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--resilience", "parity", "--parity-model", truncated], "parity.safetensors is not whole"),
        (["--resilience", "default-answer", "--late-after-us", 9, "--default-answer", truncated],
         "no .npz file of arrays"),
        (["--parity-model", "none.safetensors"], "there is no file none.safetensors"),
        (["--faults", truncated], "is not a YAML file"),
        (["--record", "requests.csv"], "--record must be a file NAME.npz"),
        (["--model", "nowhere:model", "--record", "none/requests.npz"], "No such file or directory"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_any_model_is_said_before_one_is_built(tmp_path, capsys, flags, sentence):
    given = [str(flag(tmp_path) if callable(flag) else flag) for flag in flags]
    model = [] if "--model" in flags else ["--model", "sleep"]
    with pytest.raises(SystemExit, match="2"):
        prepared(parse(ServeOptions, [*model, *given]))
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--resilience", "parity", "--k", 3, "--instances", 2], "RESILIENCE_K=3 needs at least 3 instances"),
        (["--resilience", "parity", "--instances", 2], "the server was started with none"),
        (["--model", "minilm", "--resilience", "parity", "--parity-model", "minilm", "--instances", 2],
         "input 'token_ids' is INT64"),
        (["--resilience", "parity", "--r", 2, "--instances", 2, *MISFIT, "--parity-model", "sleep"],
         "do not fit the deployed model's"),
        (["--model", "mlp", "--record", "requests.npz", "--record-items", 1_000_000],
         "would take 3.1 GB of memory"),
        (["--model", "minilm", "--record", "requests.npz"], "one floating-point input of one size"),
        (["--model", "tests.support.models.texts:doubled_rows", "--record", "requests.npz"],
         "one floating-point input of one size"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_said_when_the_server_starts(flags, sentence):
    model = [] if "--model" in flags else ["--model", "sleep"]
    command = [sys.executable, "-m", "serving_adapter.server.command_line", *model, *map(str, flags)]
    ended = subprocess.run([*command, "--port", "0", "--metrics-port", "0"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


def test_recorded_requests_are_a_sample_that_a_parity_model_can_be_trained_with(start_server, tmp_path):
    file = tmp_path / "requests.npz"
    server = start_server(*SLEEP, "--record", file, "--record-items", 20)
    on(server, lambda stub: answers(stub, 30, rows=2))
    server.stop()
    with np.load(file) as recorded:
        sample = recorded["x"]
    sent = {row.tobytes() for i in range(30) for row in values_of(i, 2)}
    assert sample.shape == (20, 16)
    assert len(load_dataset(str(file)).training.x) == 16
    assert {row.tobytes() for row in sample} <= sent
