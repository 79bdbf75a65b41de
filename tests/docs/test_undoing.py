"""A run is undone by hand as the page says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from rrl.space import ConfigurationSpace
from rrl.views.exports import write_views
from rrl.views.summary import summarise
from serving_adapter.model_configuration import parse
from serving_adapter.target.open_inference.joint_target import JointTarget
from serving_adapter.target.open_inference.open_inference_target import OpenInferenceTarget
from tests.support.pages import DOCS, blocks
from tests.support.runs.simulated_runs import tuned
from tests.support.servers.fake_triton import CONFIG, Triton, serve

PAGE = DOCS / "how-to" / "operators-limits.md"
ONE_MODEL, SEVERAL_MODELS = [block.text for block in blocks(PAGE) if "load_model(" in block.text]
T = TypeVar("T")
ITS_ADDRESS = '"localhost:8001"'
CHANGE = {"instances": 3, "max_batch_size": 8, "max_queue_delay_us": 900}


@pytest.fixture
def triton() -> Iterator[tuple[Triton, str]]:
    """A server, and its address."""
    served = Triton()
    server, port = serve(served)
    server.start()
    yield served, f"127.0.0.1:{port}"
    server.stop(None).wait()


def changed_by_a_run(folder: Path, target: OpenInferenceTarget | JointTarget, model: str = "") -> None:
    """What is found is changed, and the run's views are written. Of several models it tunes the one named."""
    header, records = tuned(folder / "simulated", intervals=2)

    def named(configuration: Mapping[str, T]) -> dict[str, T]:
        return {f"{model}.{name}" if model else name: value for name, value in configuration.items()}

    target.connect()
    header = replace(
        header,
        space=ConfigurationSpace.of(**named({k.name: k.values for k in header.space.knobs})),
        found=target.configuration(),
        start=named(header.start),
        found_config_pbtxt=target.config_text(),
    )
    records = [replace(record, configuration=named(record.configuration)) for record in records]
    target.apply(named(CHANGE))
    today = folder / "runs" / "today"
    today.mkdir(parents=True)
    write_views(today, header, records, summarise(header, records), target, ended=True)
    target.close()


def test_what_a_run_had_found_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triton: tuple[Triton, str]
) -> None:
    served, address = triton
    changed_by_a_run(tmp_path, OpenInferenceTarget(address, "m"))
    assert served.configs["m"] != parse(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert ITS_ADDRESS in ONE_MODEL
    exec(ONE_MODEL.replace(ITS_ADDRESS, repr(address)), {})
    assert served.configs["m"] == parse(CONFIG)


def test_so_do_models_that_were_tuned_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triton: tuple[Triton, str]
) -> None:
    served, address = triton
    for name in ("m", "n"):
        served.configs[name] = ModelConfig()
        served.configs[name].MergeFrom(parse(CONFIG))
        served.configs[name].name = name
    found = dict(served.configs)
    changed_by_a_run(tmp_path, JointTarget(address, list(found)), model="n")
    assert served.configs["n"] != found["n"]
    monkeypatch.chdir(tmp_path)
    opened, load = ONE_MODEL.replace(ITS_ADDRESS, repr(address)), SEVERAL_MODELS
    exec(opened[: opened.index("client.load_model(")] + load, {})
    assert served.configs == found
