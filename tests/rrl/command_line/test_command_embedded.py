"""`rrl-tune` with one's own model, and no server beside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from rrl.journal import read
from tests.support import CHECKOUT
from tests.support.runs.running_command import QUICK, exit_code
from tests.support.waiting import until

STUCK = """
import time
from pathlib import Path

import torch
from serving_adapter.tensors import TensorSpec

class Stuck(torch.nn.Module):
    def forward(self, x):
        if (x == 9).any():
            Path("stuck").touch()
            time.sleep(3600)
        return {"y": x}

def stuck():
    return Stuck(), [TensorSpec("x", "FP32", (4,))]
"""


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


def test_ctrl_c_is_heard_while_the_server_is_measured_and_a_second_one_leaves_nobody_behind(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(STUCK)
    command = [sys.executable, "-m", "rrl.command_line", "--model", "mine:stuck", "--out", "run"]
    environment = dict(os.environ) | {"PYTHONPATH": str(CHECKOUT)}
    tuner = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)
    log = tmp_path / "run" / "server.log"
    try:
        until(lambda: log.exists() and "metrics on" in log.read_text())
        (address,) = re.findall(r"^serving stuck on (\S+),", log.read_text(), re.MULTILINE)
        with grpc.insecure_channel(address) as channel:
            request = pb.ModelInferRequest(
                model_name="stuck", raw_input_contents=[np.full(4, 9, np.float32).tobytes()]
            )
            request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
            answer = GRPCInferenceServiceStub(channel).ModelInfer.future(request)
            until(lambda: (tmp_path / "stuck").exists() and (tmp_path / "run" / "burst").exists())
            family = psutil.Process(tuner.pid).children(recursive=True)
            tuner.send_signal(signal.SIGINT)
            until(lambda: "draining" in log.read_text())  # for the sake of the request above
            assert not (tmp_path / "run" / "burst" / "load.json").exists(), "the burst was waited for"
            assert not answer.done()
            tuner.send_signal(signal.SIGINT)
            assert tuner.wait(60) == 130
            assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        tuner.kill()
        assert "Traceback" not in tuner.communicate()[0]
