"""Classifiers: their shapes, their random weights, and files that say which of them they are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from serving_adapter.models import CLASSIFIERS
from serving_adapter.models.classifiers import ARCHITECTURES, Probabilities, initialise, network
from serving_adapter.models.loading import load_model
from serving_adapter.models.model import ModelError
from serving_adapter.models.parity_metadata import (
    ParityMetadata,
    WeightsFileError,
    read_architecture,
    read_parity_metadata,
    weights_digest,
)
from serving_adapter.models.weights_files import save_weights

SMALL = {"classes": "3", "channels": "1", "size": "8"}
PARITY = ParityMetadata(k=3, row=1, r=2, encoder="sum", of="abc")


@pytest.fixture
def weights_file(tmp_path):
    """A small MLP's weights file, and the network in it."""
    net = network(load_model("mlp", SMALL | {"seed": "5"}).module)
    path = tmp_path / "mlp.safetensors"
    save_weights(path, net, "mlp", SMALL, PARITY)
    return path, net


def rewritten(path, metadata: dict[str, str] | None, **tensors: torch.Tensor):
    save_file(tensors or {"a": torch.zeros(2)}, path, metadata)
    return path


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32)])
def test_every_classifier_takes_images_of_the_usual_sizes(name, channels, size):
    model = load_model(name, {"classes": "7", "channels": str(channels), "size": str(size)})
    assert model.inputs[0].shape == (channels, size, size)
    outputs = model.run(model.example(rows=2))
    assert outputs["y"].shape == (2, 7)
    assert outputs["y"].isfinite().all()


def test_every_architecture_is_in_the_catalogue():
    assert set(ARCHITECTURES) == set(CLASSIFIERS)


def test_layers_of_all_kinds_are_initialised_by_the_seed_alone():
    def initialised(seed: int) -> list[torch.Tensor]:
        net = nn.ModuleList(
            [
                nn.Embedding(5, 4),
                nn.Conv1d(4, 4, 3),
                nn.LayerNorm(4),
                nn.GRU(4, 4),
                nn.BatchNorm1d(4),
                nn.ReLU(),
            ]
        )
        for tensor in net.state_dict().values():
            tensor.fill_(9)
        drawn = torch.get_rng_state()
        initialise(net, seed)
        assert drawn.equal(torch.get_rng_state())  # what others draw stays as it is
        return list(net.state_dict().values())

    first = initialised(1)
    assert not any((tensor == 9).any() for tensor in first)
    assert all(a.equal(b) for a, b in zip(first, initialised(1), strict=True))
    assert not all(a.equal(b) for a, b in zip(first, initialised(2), strict=True))


def test_weights_that_cannot_be_drawn_anew_are_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ModelError, match="MultiheadAttention has weights of its own and no reset_parameters"):
        initialise(net, 0)
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())


def test_lenet_is_the_original_at_32_pixels():
    parameters = sum(p.numel() for p in load_model("lenet5", {}).module.parameters())
    assert (
        parameters == 61_706
    )  # LeCun et al., 1998, with every map of the second layer joined to all of the first


def test_a_narrow_resnet_has_the_same_layers_of_fewer_channels():
    wide, narrow = (
        [
            tuple(tensor.shape)
            for tensor in load_model("resnet18", {"width": width}).module.state_dict().values()
        ]
        for width in ("64", "16")
    )
    assert len(wide) == len(narrow)
    assert (wide[0], narrow[0]) == ((64, 3, 3, 3), (16, 3, 3, 3))
    assert (wide[-2], narrow[-2]) == ((10, 512), (10, 128))
    with pytest.raises(ModelError, match="resnet18: width must be at least 1, got 0"):
        load_model("resnet18", {"width": "0"})


def test_random_weights_follow_the_seed_and_biases_are_zero():
    first, again, other = (load_model("lenet5", {"seed": seed}).module for seed in ("1", "1", "2"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    layers = [layer for layer in first.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    assert len(biases) == len(layers)
    assert all(not bias.any() for bias in biases)


def test_probabilities_add_up_to_what_is_asked_for():
    model = load_model("mlp", SMALL | {"answer": "probabilities", "times": "4"})
    assert isinstance(model.module, Probabilities)
    assert model.run(model.example())["y"].sum().item() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": "0"}, "mlp: classes and channels must be at least 1 and size at least 1 pixels"),
        ({"answer": "both"}, "answer must be one of logits, probabilities, got 'both'"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(ModelError, match=sentence):
        load_model("mlp", options)


def test_a_weights_file_brings_the_model_that_it_names(weights_file):
    path, net = weights_file
    model = load_model(str(path), {})
    assert model.inputs[0].shape == (1, 8, 8)
    assert not model.module.training
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(model.run({"x": x})["y"], net(x))


def test_a_weights_file_takes_no_options(weights_file):
    with pytest.raises(ModelError, match="takes no options but architecture, got size"):
        load_model(str(weights_file[0]), {"size": "8"})


def test_the_header_tells_parity_models_from_others(weights_file, tmp_path):
    path, net = weights_file
    assert read_parity_metadata(path) == PARITY
    assert read_architecture(path).model == "mlp"
    save_weights(tmp_path / "plain.safetensors", net, "mlp", SMALL)
    assert read_parity_metadata(tmp_path / "plain.safetensors") is None


def test_the_digest_is_of_the_weights_and_of_nothing_else(weights_file, tmp_path):
    path, net = weights_file
    save_weights(tmp_path / "same.safetensors", net, "mlp", SMALL)
    assert weights_digest(tmp_path / "same.safetensors") == weights_digest(path)
    with torch.no_grad():
        next(net.parameters())[0] += 1
    save_weights(tmp_path / "other.safetensors", net, "mlp", SMALL)
    assert weights_digest(tmp_path / "other.safetensors") != weights_digest(path)


def test_headers_are_read_without_torch_and_numpy():
    code = (
        "import sys, serving_adapter.models.parity_metadata; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_truncated_file_is_refused_by_everybody(weights_file):
    path, _ = weights_file
    whole = path.read_bytes()
    for length in (0, 4, 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=str(path)):
            load_model(str(path), {})
        with pytest.raises(WeightsFileError, match=str(path)):
            read_parity_metadata(path)
        with pytest.raises(WeightsFileError, match=str(path)):
            weights_digest(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"cannot read the weights file .*none\.safetensors: No such file"):
        load_model(str(tmp_path / "none.safetensors"), {})


def test_a_file_of_nobody_is_refused(tmp_path):
    with pytest.raises(ModelError, match="does not say which architecture its weights are for"):
        load_model(str(rewritten(tmp_path / "a.safetensors", None)), {})


@pytest.mark.parametrize("name", ["os:system", "my_module:factory"])
def test_a_file_cannot_name_code(tmp_path, name):
    path = rewritten(tmp_path / "a.safetensors", {"model": name})
    with pytest.raises(ModelError, match=f"is for the model '{name}', which is not of the catalogue"):
        load_model(str(path), {})
    with pytest.raises(ModelError, match=f"is for the model '{name}', which is not of the catalogue"):
        load_model(str(path), {"architecture": "another:factory"})


@pytest.mark.parametrize("options", ["[]", "{", '{"size": 8}'])
def test_options_that_are_no_texts_are_refused(tmp_path, options):
    path = rewritten(tmp_path / "a.safetensors", {"model": "mlp", "options": options})
    with pytest.raises(ModelError, match="the header's entry 'options' cannot be read"):
        load_model(str(path), {})


def test_weights_that_do_not_fit_the_architecture_are_refused(weights_file, tmp_path):
    _, net = weights_file
    state, metadata = dict(net.state_dict()), {"model": "mlp", "options": json.dumps(SMALL)}
    cases = {
        "the tensor '5.bias' is missing": {k: v for k, v in state.items() if k != "5.bias"},
        "it has a tensor 'extra' too many": state | {"extra": torch.zeros(1)},
        r"the tensor '5.bias' should be \[3\], it is \[4\]": state | {"5.bias": torch.zeros(4)},
    }
    for sentence, tensors in cases.items():
        with pytest.raises(ModelError, match=sentence):
            load_model(str(rewritten(tmp_path / "a.safetensors", metadata, **tensors)), {})


@pytest.mark.parametrize(
    ("parity", "sentence"),
    [
        ("{", "the header's entry 'parity' cannot be read"),
        ('{"k": 2}', "the header's entry 'parity' cannot be read"),
        (json.dumps(PARITY._asdict() | {"k": "2"}), "k, row and r must be whole numbers"),
        (json.dumps(PARITY._asdict() | {"of": None}), "encoder and of must be text"),
        (json.dumps(PARITY._asdict() | {"k": 1}), "has k of at least 2 and a row below r, got k=1"),
        (json.dumps(PARITY._asdict() | {"row": 2}), "a row below r, got k=3, row=2, r=2"),
    ],
)
def test_parity_metadata_that_make_no_sense_are_refused(tmp_path, parity, sentence):
    path = rewritten(tmp_path / "a.safetensors", {"model": "mlp", "parity": parity})
    with pytest.raises(WeightsFileError, match=sentence):
        read_parity_metadata(path)
