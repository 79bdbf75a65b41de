"""What the benchmarks on a cluster change at random and compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.benchmarks.ray import tuned
from scripts.benchmarks.ray.changes import randomly_changed
from scripts.benchmarks.ray.units import difference
from scripts.kept_rows import OtherSetting
from serving_adapter import model_configuration

FOUND = {
    "name": "burn",
    "max_batch_size": 1,
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    "dynamic_batching": {},
    "parameters": {"CLUSTER_NODES": {"string_value": "0"}},
}


def test_random_configurations_are_edited_copies_and_fit_into_two_nodes() -> None:
    rng = np.random.default_rng(0)
    changed = [randomly_changed(FOUND, rng) for _ in range(200)]
    for each in changed:
        assert model_configuration.parse(json.dumps(each)).name == "burn"
        assert each["instance_group"][0]["kind"] == "KIND_CPU"
        nodes, instances = int(each["parameters"]["CLUSTER_NODES"]["string_value"]), each["instance_group"][0]
        assert instances["count"] <= 2 * (nodes or 2)
    assert FOUND["max_batch_size"] == 1
    assert len({str(each) for each in changed}) > 100


def test_answers_are_as_far_apart_as_their_farthest_value_by_the_largest() -> None:
    of_one = [np.array([1.0, -2.0]), np.array([4.0, 1.0])]
    assert difference(of_one, of_one) == 0
    assert difference([np.array([1.0, -2.0]), np.array([4.0, 2.0])], of_one) == 0.25


@pytest.mark.parametrize("changed", [{"window_s": 3.0}, {"intervals": 4}, {"quick": True}])
def test_what_was_tuned_goes_on_in_a_file_of_the_same_lengths_only(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    options = tuned.Options(out=tmp_path / "rows.jsonl")
    tuned.rows_of(options).add({"what": "sweep 0", "found": {}})
    assert {"what": "sweep 0"} in tuned.rows_of(replace(options, seeds=3, rounds=4))
    with pytest.raises(OtherSetting, match="and those wanted have " + next(iter(changed))):
        tuned.rows_of(replace(options, **changed))
