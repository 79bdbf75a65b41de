"""`rrl-tune` with one's own model, and no server beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from rrl.journal import read
from tests.support import CHECKOUT
from tests.support.running_command import QUICK, exit_code


@pytest.fixture
def own_model(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom serving_adapter.tensors import TensorSpec\n"
        "class Twice(torch.nn.Module):\n    def forward(self, x):\n        return {'y': 2 * x}\n"
        "def twice():\n    return Twice(), [TensorSpec('x', 'FP32', (4,))]\n"
    )
    return "mine:twice"


def test_ones_own_model_is_embedded_and_ends_with_its_trace(
    own_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    Path("trace.csv").write_text("t_s\n" + "\n".join(str(i) for i in range(100)) + "\n")
    load = ["--arrivals", "trace.csv", "--rate", 40]
    common = ["--agent", "sweep", "--intervals", 100, *QUICK]
    assert exit_code("--model", own_model, *load, *common, "--out", "run") == 0
    assert "the load's trace is over" in capsys.readouterr().out
    header, _ = read(tmp_path / "run")
    assert (header.model, header.target) == ("twice", "embedded")
    assert exit_code("--resume", "run") == 0
