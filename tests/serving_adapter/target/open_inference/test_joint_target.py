"""How a change of several models at once is taken back, on a small server that answers as Triton does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from serving_adapter.knob_limits import Configuration
from serving_adapter.model_configuration import edited, knob_values, parse
from serving_adapter.target import Overtaken, TargetError
from serving_adapter.target.open_inference.joint_target import JointTarget
from tests.support.servers.fake_triton import CONFIG, Triton

FOUND = {model: parse(json.dumps({**json.loads(CONFIG), "name": model})) for model in "abc"}
CHANGE: Configuration = {"a.max_batch_size": 8, "b.max_batch_size": 8, "c.instances": 2}


@pytest.fixture
def target(triton: Triton) -> Iterator[JointTarget]:
    """Three models; there is no room for the instances that the last one is to have."""
    triton.configs = dict(FOUND)
    triton.most_instances = 1
    with closing(JointTarget(triton.address, tuple(FOUND))) as target:
        target.connect()
        yield target


def test_where_one_model_refuses_the_others_are_put_back(triton: Triton, target: JointTarget) -> None:
    with pytest.raises(TargetError, match="no room") as refused:
        target.apply(CHANGE)
    assert not isinstance(refused.value, Overtaken)
    assert triton.configs == FOUND


def test_what_another_client_sets_of_one_while_it_is_put_back_stays_and_is_told(
    triton: Triton, target: JointTarget
) -> None:
    theirs = edited(FOUND["b"], {"instances": 2, "max_batch_size": 2})
    put_back = knob_values(FOUND["b"])
    triton.takes = lambda config: theirs if (config.name, knob_values(config)) == ("b", put_back) else config
    says = r"no room .*, and another client set instances=2, .* 'b' was configured, which stays in force$"
    with pytest.raises(Overtaken, match=says):
        target.apply(CHANGE)
    assert triton.configs == FOUND | {"b": theirs}
