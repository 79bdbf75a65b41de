from __future__ import annotations

import json

import pytest

from serving_adapter.target import Target
from serving_adapter.target.kept_configuration import KeptConfiguration
from tests.support.running_server import RunningServer

KNOBS = {"instances": 3, "max_batch_size": 4, "max_queue_delay_us": 500}


def test_it_answers_as_the_target_does_that_it_was_read_from(server: RunningServer) -> None:
    target = Target(server.address)
    target.connect()
    try:
        kept = KeptConfiguration(target.config_pbtxt())
        assert kept.config_pbtxt() == target.config_pbtxt()
        assert kept.config_pbtxt(KNOBS) == target.config_pbtxt(KNOBS)
        assert kept.config_pbtxt(KNOBS) != kept.config_pbtxt()
        assert json.loads(kept.model_config(KNOBS)) == json.loads(target.model_config(KNOBS))
    finally:
        target.close()


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="not a ModelConfig in text format"):
        KeptConfiguration("max_batch_size: many")
