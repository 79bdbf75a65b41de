"""Two models of one stock Triton, tuned together and apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.triton import joint
from scripts.kept_rows import OtherSetting


@pytest.mark.parametrize(
    "changed",
    [{"load": 0.5}, {"models": ("minilm", "burn")}, {"cores": 2}, {"interval_s": 10.0}, {"window_s": 15.0}],
)
def test_two_models_go_on_in_a_file_of_the_same_models_load_and_lengths_only(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    options = joint.Options(out=tmp_path / "rows.jsonl")
    joint.rows_of(options).add({"what": "rates", "found": {}})
    more = replace(options, seeds=3, rounds=4, agents=(joint.TOGETHER,))
    assert {"what": "rates"} in joint.rows_of(more)
    with pytest.raises(OtherSetting, match="and those wanted have " + next(iter(changed))):
        joint.rows_of(replace(options, **changed))
