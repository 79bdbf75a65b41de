"""Chaos in short: everything holds under some changes and kills, and the oracle knows a wrong answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.chaos.checked_model import WIDTH, expected
from scripts.robustness.chaos.load import wrong_with
from tests.support import CHECKOUT

SHORT = ("--changes", "4", "--kills", "6", "--pace-s", "0.5", "--seed", "4")


@pytest.mark.timeout(600)  # much longer than it takes, where the machine has other work
def test_nothing_is_lost_wrong_or_failed_under_changes_and_kills(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = [sys.executable, "-m", "scripts.robustness", "chaos", *SHORT, "--out", str(out)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    (run,) = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert run["lost"] == run["wrong"] == run["failed"] == run["other faults"] == 0
    assert run["changes"] >= 4
    assert run["kills"] + run["stops"] >= 6
    assert run["requests"] > 100
    assert run["target left as found"] + run["target left better"] == 1


def answered(x: np.ndarray, number: int = 7) -> pb.ModelInferResponse:
    """What a faultless server answers."""
    response = pb.ModelInferResponse(id=str(number))
    for name, array in expected(x).items():
        response.outputs.add(name=name, datatype="FP64", shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
    return response


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(2 * WIDTH, dtype=float).reshape(2, WIDTH)


def test_the_oracle_takes_the_right_answer_only(x: np.ndarray) -> None:
    assert not wrong_with(answered(x), x, True, 7)
    assert "id" in wrong_with(answered(x, 8), x, True, 7)
    assert "y is" in wrong_with(answered(x[::-1]), x, True, 7)
    assert "shape" in wrong_with(answered(x[:1]), x, True, 7)


def test_the_oracle_takes_an_approximation_only_where_none_was_refused(x: np.ndarray) -> None:
    response = answered(x * (1 + 1e-9))
    response.parameters["reconstructed"].bool_param = True
    assert not wrong_with(response, x, False, 7)
    assert "exact" in wrong_with(response, x, True, 7)
    del response.parameters["reconstructed"]
    assert "y is" in wrong_with(response, x, False, 7)
