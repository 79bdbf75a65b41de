"""`rrl-parity` as users run it: train-base, train, evaluate; interrupted, resumed, and used wrongly."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.models.loading import load_model
from serving_adapter.models.model import ModelError
from serving_adapter.models.parity_metadata import read_architecture, read_parity_metadata, weights_digest
from serving_adapter.models.weights_files import save_weights
from serving_adapter.parity.command_line import main

COMMAND = [sys.executable, "-m", "serving_adapter.parity.command_line"]
BASE = ("--epochs", "5", "--device", "cpu")


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def done(*arguments: object) -> str:
    code, out, err = run(*arguments)
    assert code == 0, err
    return out


def refusal(*arguments: object) -> str:
    code, _, err = run(*arguments)
    assert code == 2, err
    return err.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Labelled images, the traffic of the same images, and a classifier trained with the first."""
    path = tmp_path_factory.mktemp("parity")
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    x = rng.standard_normal((3, 1, 4, 4))[y] + 0.2 * rng.standard_normal((300, 1, 4, 4))
    np.savez(path / "images.npz", x=x.astype(np.float32), y=y)
    np.savez(path / "traffic.npz", x=x.astype(np.float32))
    data, out = path / "images.npz", path / "base.safetensors"
    done("train-base", "--architecture", "mlp", "--data", data, "--out", out, *BASE)
    return path


def test_a_parity_model_of_recorded_traffic_is_trained_evaluated_and_served(folder, tmp_path):
    model, parity = folder / "base.safetensors", tmp_path / "parity.safetensors"
    arguments = ("--model", model, "--data", folder / "traffic.npz")
    assert "validation accuracy of reconstructions" in done("train", *arguments, "--out", parity, *BASE)
    metadata = read_parity_metadata(parity)
    assert metadata is not None
    assert metadata[:4] == (2, 0, 1, "sum")
    assert metadata.of == weights_digest(model)
    served = load_model(str(parity), {})
    assert served.run(served.example())["y"].shape == (1, 3)
    printed = done("evaluate", *arguments, "--parity", parity)
    assert re.search(r"A_a: available\s+│ 100\.00%", printed)
    assert re.search(r"A_d: reconstructed\s+│ \d+\.\d+%", printed)
    assert re.search(r"A_o: 10% unavailable", printed)
    assert re.search(r"floor: a default answer", printed)


def test_two_parity_models_are_evaluated_for_one_and_for_two_losses(folder, tmp_path):
    arguments = ("--model", folder / "base.safetensors", "--data", folder / "images.npz")
    parities = []
    for row in range(2):
        path = tmp_path / f"{row}.safetensors"
        done("train", *arguments, "--r", 2, "--row", row, "--out", path, *BASE)
        parities += ["--parity", path]
    assert "2 lost" in done("evaluate", *arguments, *parities)
    assert "a code of r=2 needs 2 parity models, got 1" in refusal("evaluate", *arguments, *parities[:2])


def interrupted(*arguments: object) -> None:
    """Runs the command until it trains, and interrupts it."""
    # With so many epochs the first validation is far away, and the signal is what stops it.
    command = [*COMMAND, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1) as process:
        _wait_until_it_trains(process)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=100)
    assert process.returncode == 130, printed
    assert "the same command goes on from" in printed


def test_interrupting_leaves_a_checkpoint_and_the_same_command_goes_on(folder, tmp_path):
    out = tmp_path / "slow.safetensors"
    arguments = ["train-base", "--architecture", "mlp", "--data", str(folder / "images.npz")]
    arguments += ["--out", str(out), "--epochs", "100000", "--threads", "1", "--device", "cpu"]
    checkpoint = tmp_path / "slow.safetensors.checkpoint"
    interrupted(*arguments, "--batch-size", "64")
    assert checkpoint.exists()
    assert not out.exists()
    assert "with other options or data" in refusal(*arguments, "--batch-size", "32")


def test_a_parity_model_of_another_deployed_model_is_refused(folder, tmp_path):
    data, parity, other = folder / "images.npz", tmp_path / "p.safetensors", tmp_path / "other.safetensors"
    done("train", "--model", folder / "base.safetensors", "--data", data, "--out", parity, *BASE)
    done("train-base", "--architecture", "mlp", "--data", data, "--out", other, "--seed", 1, *BASE)
    sentence = refusal("evaluate", "--model", other, "--parity", parity, "--data", data)
    assert f"{parity} was trained for another deployed model than {other}" in sentence
    sentence = refusal("evaluate", "--model", other, "--parity", other, "--data", data)
    assert "is no parity model" in sentence


def test_wrong_use_is_one_sentence(folder, tmp_path):
    model, data, out = folder / "base.safetensors", folder / "images.npz", tmp_path / "o.safetensors"
    train = ("train", "--model", model, "--data", data, "--out", out, "--device", "cpu")
    assert "usage: rrl-parity COMMAND, with COMMAND one of train-base, train, evaluate" in refusal()
    assert "k must be from 2 to 64, got 1" in refusal(*train, "--k", 1)
    assert "row must be from 0 to r - 1" in refusal(*train, "--row", 1)
    assert "epochs must be at least 1" in refusal(*train, "--epochs", 0)
    assert "exists already" in refusal("train", "--model", model, "--data", data, "--out", model)
    assert "NAME.safetensors" in refusal(
        "train", "--model", model, "--data", data, "--out", tmp_path / "o.pt"
    )
    nowhere = tmp_path / "none" / "o.safetensors"
    assert f"cannot read or write {nowhere}: No such file or directory" in refusal(
        *("train-base", "--architecture", "mlp", "--data", data, "--out", nowhere, "--epochs", 10**6)
    )
    assert "unknown data 'nothing'" in refusal(
        "train", "--model", model, "--data", "nothing", "--out", out, "--device", "cpu"
    )
    assert "cannot read the weights file" in refusal(
        "train", "--model", tmp_path / "none.safetensors", "--data", data, "--out", out, "--device", "cpu"
    )
    assert "needs a deployed model that answers probabilities" in refusal(*train, "--loss", "cross-entropy")
    assert "has no labels" in refusal(
        *("train-base", "--architecture", "mlp", "--data", folder / "traffic.npz", "--out", out)
    )


def test_images_that_do_not_fit_the_model_or_the_encoder_are_refused(folder, tmp_path):
    model, out = folder / "base.safetensors", tmp_path / "o.safetensors"
    np.savez(tmp_path / "large.npz", x=np.zeros((40, 1, 6, 6), np.float32))
    sentence = refusal("train", "--model", model, "--data", tmp_path / "large.npz", "--out", out)
    assert "the model takes items of (1, 4, 4), those of large are (1, 6, 6)" in sentence
    data = folder / "images.npz"
    sentence = refusal(
        "train", "--model", model, "--data", data, "--out", out, "--encoder", "concat", "--k", 5
    )
    assert "concat encoder cannot divide into a grid of 2 x 3" in sentence


def _wait_until_it_trains(process: subprocess.Popen[str]) -> None:
    """Only from then on Ctrl-C is the training's."""
    assert process.stderr is not None
    assert any("training with" in line for line in iter(process.stderr.readline, ""))


FACTORY = """
import torch
from serving_adapter.tensors import TensorSpec

def net(width: int = 8):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, width), torch.nn.Linear(width, 3))
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return module, [TensorSpec("x", "FP32", (1, 4, 4))]
"""


def test_a_parity_model_for_a_factory_of_ones_own_is_trained_and_evaluated_and_served(
    folder, tmp_path, monkeypatch, start_server
):
    (tmp_path / "own_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    parity, model = tmp_path / "parity.safetensors", ("--model", "own_factory:net")
    arguments = (*model, "--model-option", "width=12", "--data", folder / "traffic.npz")
    done("train", *arguments, "--out", parity, "--epochs", "60", "--device", "cpu")
    assert "A_d: reconstructed" in done("evaluate", *arguments, "--parity", parity)
    with pytest.raises(
        ModelError, match="which is not of the catalogue; its code runs only where it is named"
    ):
        load_model(str(parity), {})
    options = ("--model-option", "width=12", "--instances", 2, "--intra-op-threads", 1)
    server = start_server(*model, *options, "--parity-model", parity, "--resilience", "parity")
    with grpc.insecure_channel(server.address) as channel:
        request = pb.ModelInferRequest(model_name="net")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 1, 4, 4])
        request.raw_input_contents.append(np.ones((1, 1, 4, 4), np.float32).tobytes())
        response = GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert tuple(response.outputs[0].shape) == (1, 3)


def test_an_exported_file_cannot_be_trained(folder, tmp_path):
    arguments = ("--model", tmp_path / "net.pt2", "--data", folder / "traffic.npz")
    assert "is an exported file, which cannot be trained" in refusal(
        "train", *arguments, "--out", "p.safetensors"
    )


def test_a_training_does_not_go_on_for_another_deployed_model(folder, tmp_path):
    arguments = ("train", "--data", folder / "traffic.npz", "--out", tmp_path / "parity.safetensors",
                 "--epochs", "100000", "--device", "cpu")  # fmt: skip
    model, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    for path, seed in ((model, 1), (other, 2)):
        done("train-base", "--architecture", "mlp", "--data", folder / "images.npz", "--out", path,
             "--seed", seed, *BASE)  # fmt: skip
    interrupted(*arguments, "--model", model)
    assert "it is of a training with other options or data" in refusal(*arguments, "--model", other)


def test_a_corrupted_weights_file_is_refused_by_who_loads_it_and_by_the_server(folder, tmp_path):
    model, parity = folder / "base.safetensors", tmp_path / "parity.safetensors"
    done("train", "--model", model, "--data", folder / "traffic.npz", "--out", parity, *BASE)
    data = bytearray(parity.read_bytes())
    data[-100:] = b"\xff" * 100
    parity.write_bytes(data)
    with pytest.raises(ModelError, match="is corrupted: its weights are not those that were saved"):
        load_model(str(parity), {})
    command = [sys.executable, "-m", "serving_adapter.server.command_line", "--model", str(model)]
    ended = subprocess.run([*command, "--parity-model", str(parity)], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "is corrupted" in ended.stderr


def test_a_regressor_is_trained_and_judged_by_the_boxes_that_it_answers(tmp_path):
    rng = np.random.default_rng(0)
    corners = rng.integers(3, size=(300, 2))
    x = np.zeros((300, 1, 4, 4), np.float32)
    x[np.arange(300), 0, corners[:, 1], corners[:, 0]] = 1.0
    boxes = np.concatenate([corners, corners + 1], axis=1).astype(np.float32)
    np.savez(tmp_path / "boxes.npz", x=x, y=boxes)
    data, base, parity = (tmp_path / name for name in ("boxes.npz", "b.safetensors", "p.safetensors"))
    arguments = ("--data", data, "--score", "iou", "--device", "cpu")
    said = done("train-base", "--architecture", "mlp", *arguments, "--out", base, "--epochs", 60)
    assert re.search(r"validation iou 0\.\d+", said)
    said = done("train", "--model", base, *arguments, "--out", parity, "--epochs", 30)
    assert re.search(r"validation iou of reconstructions 0\.\d+", said)
    printed = done("evaluate", "--model", base, "--parity", parity, "--data", data, "--score", "iou")
    available, degraded = (
        float(re.search(rf"{name}\s+│ (\d\.\d+) ", printed)[1])  # type: ignore[index]
        for name in ("A_a: available", "A_d: reconstructed")
    )
    assert available >= degraded > 0.3
    assert "r2 by the labels" in done("evaluate", "--model", base, "--parity", parity, "--data", data)
    assert "the score top-1 is for labels that are classes" in refusal(
        "evaluate", "--model", base, "--parity", parity, "--data", data, "--score", "top-1"
    )


def test_a_parity_model_may_be_of_another_architecture(folder, tmp_path):
    model, data, parity = folder / "base.safetensors", folder / "images.npz", tmp_path / "p.safetensors"
    arguments = ("train", "--model", model, "--data", data, "--out", parity)
    assert "--architecture-option is for another --architecture" in refusal(
        *arguments, "--architecture-option", "width=2", *BASE
    )
    assert "cannot read --architecture-option 'width'" in refusal(
        *arguments, "--architecture", "resnet18", "--architecture-option", "width", *BASE
    )
    done(*arguments, "--architecture", "resnet18", "--architecture-option", "width=2", "--epochs", 1,
         "--device", "cpu")  # fmt: skip
    assert read_architecture(parity).options["width"] == "2"
    assert "A_d: reconstructed" in done("evaluate", "--model", model, "--parity", parity, "--data", data)


def test_a_base_may_have_options_of_its_architecture(folder, tmp_path):
    base = tmp_path / "narrow.safetensors"
    done("train-base", "--architecture", "resnet18", "--model-option", "width=2", "--data",
         folder / "images.npz", "--out", base, "--epochs", 1, "--device", "cpu")  # fmt: skip
    assert next(load_model(str(base), {}).module.parameters()).shape[0] == 2


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("size=8", "the model takes items of (1, 8, 8), those of images are (1, 4, 4)"),
        ("channels=3", "the model takes items of (3, 4, 4), those of images are (1, 4, 4)"),
        ("classes=2", "the labels go up to 2, the deployed model answers 2 classes"),
    ],
)
def test_options_of_a_base_that_do_not_fit_the_data_are_refused_before_the_training(
    folder, tmp_path, option, sentence
):
    arguments = ("train-base", "--architecture", "resnet18", "--model-option", "width=2", *BASE)
    data, out = folder / "images.npz", tmp_path / "base.safetensors"
    (said,) = refusal(*arguments, "--model-option", option, "--data", data, "--out", out).splitlines()
    assert sentence in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("size=8", "the model takes items of (1, 8, 8), those of images are (1, 4, 4)"),
        ("classes=4", "the parity model answers 4 numbers, the deployed model 3: leave classes out"),
    ],
)
def test_options_of_another_architecture_that_do_not_fit_are_refused_before_the_training(
    folder, tmp_path, option, sentence
):
    arguments = ("train", "--model", folder / "base.safetensors", "--data", folder / "images.npz", *BASE)
    out = ("--architecture", "resnet18", "--out", tmp_path / "parity.safetensors")
    (said,) = refusal(*arguments, *out, "--architecture-option", option).splitlines()
    assert sentence in said
    assert list(tmp_path.iterdir()) == []


ANSWERING_FACTORY = """
from serving_adapter.models.classifiers import mlp

def answering(answer: str = "logits"):
    return mlp(classes=3, channels=1, size=4, answer=answer)
"""


def test_cross_entropy_is_for_networks_of_the_catalogue(folder, tmp_path, monkeypatch):
    (tmp_path / "answering_factory.py").write_text(ANSWERING_FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    model = ("--model", "answering_factory:answering", "--model-option", "answer=probabilities")
    parity = tmp_path / "parity.safetensors"
    arguments = ("train", *model, "--data", folder / "images.npz", "--out", parity, *BASE)
    said = refusal(*arguments, "--loss", "cross-entropy")
    assert "--loss cross-entropy trains networks of mlp, lenet5, vgg11, resnet18" in said
    assert not parity.exists()
    done(*arguments, "--loss", "cross-entropy", "--architecture", "mlp")
    assert read_architecture(parity).model == "mlp"


def test_a_training_that_diverged_writes_no_file(tmp_path):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((60, 1, 4, 4), (60, 2)))
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    out = tmp_path / "b.safetensors"
    sentence = refusal(
        *("train-base", "--architecture", "mlp", "--data", tmp_path / "numbers.npz", "--out", out),
        *("--learning-rate", "1e30", *BASE),
    )
    assert "the training diverged" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.npz"]


def test_a_random_start_keeps_nothing_of_the_deployed_model(folder, tmp_path, monkeypatch):
    options = {"classes": "3", "channels": "1", "size": "4", "width": "4"}
    net = load_model("resnet18", options).module
    for tensor in net.state_dict().values():
        tensor.fill_(3)
    base, began = tmp_path / "base.safetensors", {}
    save_weights(base, net, "resnet18", options)

    def begun(net, task, settings, watch):
        began.update({name: tensor.clone() for name, tensor in net.state_dict().items()})
        raise ValueError("the weights are known")

    monkeypatch.setattr("serving_adapter.parity.command_line.train", begun)
    arguments = ("train", "--model", base, "--data", folder / "images.npz", "--device", "cpu")
    refusal(*arguments, "--start", "random", "--seed", 5, "--out", tmp_path / "p.safetensors")
    fresh = load_model("resnet18", options | {"seed": "5"}).module.state_dict()
    assert began.keys() == fresh.keys()
    assert all(began[name].equal(tensor) for name, tensor in fresh.items())


def test_an_iou_of_answers_that_are_no_boxes_is_refused(folder, tmp_path):
    arguments = ("train", "--model", folder / "base.safetensors", "--data", folder / "traffic.npz")
    sentence = refusal(*arguments, "--score", "iou", "--out", tmp_path / "p.safetensors", *BASE)
    assert "the score iou is for models that answer boxes of 4 numbers, this one answers 3" in sentence
