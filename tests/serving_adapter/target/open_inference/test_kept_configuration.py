from __future__ import annotations

import json

import pytest

from serving_adapter.model_configuration import knob_values
from serving_adapter.target import OpenInferenceTarget
from serving_adapter.target.open_inference.joint_configuration import JointConfiguration
from serving_adapter.target.open_inference.kept_configuration import KeptConfiguration, kept_configuration
from tests.support.servers.running_server import RunningServer

KNOBS = {"instances": 3, "max_batch_size": 4, "max_queue_delay_us": 500}


def test_it_answers_as_the_target_does_that_it_was_read_from(server: RunningServer) -> None:
    target = OpenInferenceTarget(server.address)
    target.connect()
    try:
        kept = KeptConfiguration(target.config_text())
        assert kept.config_text() == target.config_text()
        assert kept.config_text(KNOBS) == target.config_text(KNOBS)
        assert kept.config_text(KNOBS) != kept.config_text()
        files, of_target = kept.config_files(KNOBS), target.config_files(KNOBS)
        assert files["config.pbtxt"] == of_target["config.pbtxt"] == kept.config_text(KNOBS)
        assert json.loads(files["model_config.json"]) == json.loads(of_target["model_config.json"])
    finally:
        target.close()


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="not a ModelConfig in text format"):
        KeptConfiguration("max_batch_size: many")


def test_the_text_of_several_models_keeps_each_of_them() -> None:
    texts = {name: f'name: "{name}"\nmax_batch_size: 4\n' for name in ("bert", "resnet")}
    told = JointConfiguration({name: KeptConfiguration(text) for name, text in texts.items()}).config_text()
    kept = kept_configuration(told)
    assert kept.config_text() == told
    as_found = kept.config_files({})
    assert {name: as_found[f"config/{name}/config.pbtxt"] for name in texts} == texts
    configs = json.loads(kept.config_files({"resnet.max_batch_size": 8})["model_config.json"])
    sizes = {name: knob_values(json.dumps(config))["max_batch_size"] for name, config in configs.items()}
    assert sizes == {"bert": 4, "resnet": 8}
