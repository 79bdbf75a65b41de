"""The models of TrIMS's Tables 3 and 4 as networks that run: 29 of the 37, and the 6 larger ones.

Each has the paper's bytes of weights, to within 3 %. The others (DPN, the later Inceptions, Xception) are a
`StandIn` of the paper's bytes and count of tensors. Its answer reads each weight once, and computes less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from scripts.benchmarks.store.plain_networks import (
    alexnet,
    googlenet,
    network_in_network,
    squeezenet,
    vgg,
)
from scripts.benchmarks.store.residual_networks import FORMS, residual_network
from scripts.benchmarks.store.weight_files import MODELS, PaperModel, synthetic_shapes

VGG16_DEPTHS, VGG19_DEPTHS = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)

# By the paper's name: how to build it, and the sides of its input image.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "AlexNet": (alexnet, 227),
    "CaffeNet": (partial(alexnet, groups=2), 227),
    "RCNN-ILSVRC13": (partial(alexnet, groups=2, classes=200), 227),
    "GoogLeNet": (googlenet, 224),
    "NIN": (network_in_network, 224),
    "SqueezeNet-v1.0": (squeezenet, 224),
    "SqueezeNet-v1.1": (partial(squeezenet, "1.1"), 224),
    "VGG16": (vgg, 224),
    "VGG16-SOD": (partial(vgg, classes=100), 224),
    "VGG16-SOS": (partial(vgg, classes=5), 224),
    "VGG19": (partial(vgg, VGG19_DEPTHS), 224),
    **{name: (partial(residual_network, form), 224) for name, form in FORMS.items()},
    **{f"AlexNet-S{n}": (partial(alexnet, n), 227 * n) for n in (2, 3, 4)},
    **{f"VGG16-S{n}": (partial(vgg, VGG16_DEPTHS, n), 224 * n) for n in (2, 3, 4)},
}


class StandIn(nn.Module):
    """As many tensors and bytes as a model of the paper; it answers one number."""

    def __init__(self, model: PaperModel) -> None:
        super().__init__()
        shapes = synthetic_shapes(model).values()
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)

    def forward(self, image: Tensor) -> Tensor:
        return image.mean() + torch.stack([weight.sum() for weight in self.weights]).sum()


def on_meta(name: str) -> nn.Module:
    """The model without weights, in evaluation mode."""
    with torch.device("meta"):
        network = NETWORKS[name][0]() if name in NETWORKS else StandIn(MODELS[name])
    return network.eval()


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """Its weights and buffers; what merely counts training batches is not in a weight file."""
    state = on_meta(name).state_dict()
    return {key: tuple(tensor.shape) for key, tensor in state.items() if tensor.is_floating_point()}


def image_for(name: str) -> Tensor:
    side = NETWORKS[name][1] if name in NETWORKS else 224
    return torch.linspace(-1, 1, 3 * side * side).view(1, 3, side, side)
