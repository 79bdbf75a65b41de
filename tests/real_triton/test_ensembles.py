"""Models that are made of others, tuned by their parts on a real Triton under load."""

from __future__ import annotations

import contextlib
import json
import py_compile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig

from rrl import journal
from rrl.command_line import main
from scripts.triton_server.installation import Installation
from scripts.triton_server.repository import ModelSpec, write_repository
from scripts.triton_server.running import RunningTriton, running
from serving_adapter.model_configuration import knob_values
from tests.real_triton.conftest import Load
from tests.support.servers.triton_served import Served

CHAIN = """
name: "chain" platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 16 } output { name: "y" data_type: TYPE_FP32 dims: 16 }
ensemble_scheduling {
  step { model_name: "first" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } }
  step { model_name: "second" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } } }
"""

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.called(request).output_tensors()) for request in requests]

    def called(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        inputs = [pb_utils.Tensor("x", x)]
        return pb_utils.InferenceRequest(
            model_name="second", requested_output_names=["y"], inputs=inputs
        ).exec()
"""

Sending = Callable[..., contextlib.AbstractContextManager[Load]]
View = Callable[..., Served]


@pytest.fixture(scope="module")
def whole(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A Triton with an ensemble of two steps, and with a model that calls the second of them."""
    specs = {"first": ModelSpec("sleep", {"ms": 2}), "second": ModelSpec("sleep", {"ms": 4})}
    folder = write_repository(tmp_path_factory.mktemp("whole"), {**specs, "caller": ModelSpec("noop")})
    (folder / "chain" / "1").mkdir(parents=True)
    (folder / "chain" / "config.pbtxt").write_text(CHAIN, encoding="utf-8")
    model = folder / "caller" / "1" / "model.py"
    model.write_text(CALLER, encoding="utf-8")
    py_compile.compile(str(model), doraise=True)
    with running(folder, installation=installation) as server:
        yield server


@pytest.fixture
def steps(whole: RunningTriton, serve: View) -> Iterator[dict[str, Served]]:
    """The steps, found and left in the same configuration."""
    views = {name: serve(whole, name) for name in ("first", "second")}
    found = {name: view.config() for name, view in views.items()}
    yield views
    for name, view in views.items():
        view.load(found[name])


def tuned(served: Served, folder: Path, *arguments: object) -> int:
    """The exit code of a run that tries something, however good the start is."""
    target = ("--target", served.address, "--metrics-url", served.metrics_url, "--model", served.model)
    quick = ("--interval-s", "0.5", "--settle-s", "0.1", "--agent", "sweep", "--out", str(folder))
    with pytest.raises(SystemExit) as ended:
        main([*target, *quick, *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_ensemble_is_tuned_by_its_steps_for_its_own_latency(
    whole: RunningTriton, steps: dict[str, Served], serve: View, load: Sending, tmp_path: Path
) -> None:
    chain, folder = serve(whole, "chain"), tmp_path / "run"
    found = chain.config()
    options = ("--knobs", "instances=1,2", "first.max_batch_size=8,16", "--pin", "second.instances=2")
    with load(chain, rate_per_s=40) as sending:
        assert tuned(chain, folder, *options, "--cores", 3, "--intervals", 3, "--validation", 1) == 0
        assert sending.process.poll() is None
    assert sending.failed == {}
    header, records = journal.read(folder)
    assert header.model == "chain"
    assert header.space.to_json() == {
        "first.instances": [1, 2],
        "first.max_batch_size": [8, 16],
        "second.instances": [2],
    }
    counted = [record.measurement for record in records if record.counted]
    assert all(set(m.models) == {"first", "second"} for m in counted)
    assert all(m.latency.mean_ms > sum(p.latency.mean_ms for p in m.models.values()) / 2 for m in counted)
    assert sum(record.failures for record in records) == 0
    assert any(record.configuration["first.max_batch_size"] == 16 for record in records)
    ending = journal.read_ending(folder)
    assert ending is not None
    for name, view in steps.items():
        in_force, exported = view.config(), ModelConfig()
        text_format.Parse((folder / "best_config" / name / "config.pbtxt").read_text(), exported)
        assert knob_values(exported) == knob_values(in_force)
        own = {k.partition(".")[2]: v for k, v in ending.kept.items() if k.startswith(f"{name}.")}
        assert own.items() <= knob_values(in_force).items()
    assert chain.config() == found
    assert list(json.loads((folder / "best_model_config.json").read_text())) == ["first", "second"]


def test_an_ensemble_is_tuned_under_a_load_of_the_runs_own(
    whole: RunningTriton,
    steps: dict[str, Served],
    serve: View,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chain, folder = serve(whole, "chain"), tmp_path / "run"
    assert tuned(chain, folder, "--bench", "--concurrency", 4, "--intervals", 2) == 2
    assert "is tuned by its parts, first, second: give --rate" in " ".join(capsys.readouterr().err.split())
    options = ("--bench", "--rate", 40, "--knobs", "instances=1,2")
    assert tuned(chain, folder, *options, "--intervals", 2, "--validation", 0) == 0
    header, records = journal.read(folder)
    assert header.load is not None
    assert (header.model, header.load["model"], header.load["rate"]) == ("chain", "chain", 40)
    assert any(record.counted for record in records)
    assert all(set(record.measurement.models) == {"first", "second"} for record in records if record.counted)
    assert sum(record.failures for record in records) == 0


def test_a_model_that_calls_others_is_tuned_with_them(
    whole: RunningTriton, steps: dict[str, Served], serve: View, load: Sending, tmp_path: Path
) -> None:
    caller, folder = serve(whole, "caller"), tmp_path / "run"
    options = ("--bls-composing-models", "second", "--knobs", "instances=1,2")
    with load(caller, rate_per_s=30) as sending:
        assert tuned(caller, folder, *options, "--intervals", 2, "--validation", 0) == 0
    assert sending.failed == {}
    header, records = journal.read(folder)
    assert header.model == "caller"
    assert header.limits is not None
    assert header.limits["bls_composing_models"] == "second"
    assert header.space.names == ("caller.instances", "second.instances")
    for m in (record.measurement for record in records if record.counted):
        assert m.latency.mean_ms == m.models["caller"].latency.mean_ms > m.models["second"].latency.mean_ms


def test_an_ensemble_of_which_a_step_is_away_is_refused(
    whole: RunningTriton, steps: dict[str, Served], serve: View, tmp_path: Path, capsys
) -> None:
    chain = serve(whole, "chain")
    chain.stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="second"))
    try:
        assert tuned(chain, tmp_path / "run") == 2
    finally:
        for name in ("second", "chain"):
            chain.stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name=name))
    told = capsys.readouterr().err.strip()
    assert "model 'chain' is not ready" in told
    assert len(told.splitlines()) == 1
