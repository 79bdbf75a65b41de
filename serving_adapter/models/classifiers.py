"""Small image classifiers whose weights come from a file: MLP 200-100, LeNet-5, VGG-11, ResNet-18.

They are the architectures of ParM's evaluation (Kosaian et al., SOSP'19, section 5.1), in the forms usual
for images of about 32 x 32 pixels. They adapt to smaller ones: LeNet-5 pads its convolutions below 32 pixels,
and VGG-11 leaves out a pooling that would have nothing left to pool. ResNet-18 has a 3 x 3 stem and no
max-pooling.

Without a file (`weights_files`) the weights are random, initialised as section 5.1 says: convolutions by
Xavier, biases zero, other weights N(0, 0.01). 0.01 is read as the variance: with a standard deviation of 0.01
the signal fades tenfold in each of the MLP's layers, and the first epochs learn nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving_adapter.models.model import Model, ModelError
from serving_adapter.tensors import TensorSpec

LINEAR_DEVIATION = 0.01**0.5
LENET_SIZE = 32  # pixels that LeNet-5 was made for; below, its convolutions are padded
RESNET_WIDTH = 64
VGG11_WIDTHS = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
ANSWERS = ("logits", "probabilities")


def mlp(
    classes: int = 10,
    channels: int = 1,
    size: int = 28,
    answer: str = "logits",
    times: float = 1.0,
    seed: int = 0,
) -> Model:
    """Two hidden layers of 200 and 100 units with ReLUs."""
    return _model("mlp", classes, channels, size, answer, times, seed)


def lenet5(
    classes: int = 10,
    channels: int = 1,
    size: int = 32,
    answer: str = "logits",
    times: float = 1.0,
    seed: int = 0,
) -> Model:
    """LeNet-5 with ReLUs and max-pooling."""
    return _model("lenet5", classes, channels, size, answer, times, seed)


def vgg11(
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    answer: str = "logits",
    times: float = 1.0,
    seed: int = 0,
) -> Model:
    """VGG-11 with batch normalisation and one linear layer."""
    return _model("vgg11", classes, channels, size, answer, times, seed)


def resnet18(
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    answer: str = "logits",
    times: float = 1.0,
    seed: int = 0,
    width: int = RESNET_WIDTH,
) -> Model:
    """ResNet-18 for small images; `width` is that of its first layers, so 64 is the paper's."""
    if width < 1:
        raise ModelError(f"resnet18: width must be at least 1, got {width}")
    return _model("resnet18", classes, channels, size, answer, times, seed, partial(resnet_18, width=width))


class Probabilities(nn.Module):
    """Answers `times` softmax instead of the network's logits.

    A parity model of the concatenating encoder answers k softmax. It has learned the normalised sum of k
    one-hot labels (section 5.2.3). Subtracting k - 1 answers from the unnormalised sum leaves one.
    """

    def __init__(self, net: nn.Module, times: float) -> None:
        super().__init__()
        self.net, self.times = net, times

    def forward(self, x: Tensor) -> Tensor:
        return self.times * F.softmax(self.net(x), dim=-1)


def network(module: nn.Module) -> nn.Module:
    """The network itself, which answers logits, of a classifier's module."""
    return module.net if isinstance(module, Probabilities) else module


def multi_layer_perceptron(classes: int, channels: int, size: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, 200),
        nn.ReLU(),
        nn.Linear(200, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def lenet_5(classes: int, channels: int, size: int) -> nn.Module:
    padding = 0 if size >= LENET_SIZE else 2
    after_first = (size + 2 * padding - 4) // 2
    after_second = (after_first + 2 * padding - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * after_second**2, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def vgg_11(classes: int, channels: int, size: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in VGG11_WIDTHS:
        if isinstance(width, int):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        elif size >= 2:
            layers.append(nn.MaxPool2d(2))
            size //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size * size, classes))


def resnet_18(classes: int, channels: int, size: int, width: int = RESNET_WIDTH) -> nn.Module:
    blocks = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        *(ResidualBlock(width * before, width * after, stride) for before, after, stride in blocks),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


class ResidualBlock(nn.Module):
    """He et al., "Deep residual learning", 2016: two convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.short_cut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short_cut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(inner)) + self.short_cut(x), inplace=True)


Build = Callable[[int, int, int], nn.Module]
"""Makes a network of classes, channels and size."""

ARCHITECTURES: dict[str, Build] = {
    "mlp": multi_layer_perceptron,
    "lenet5": lenet_5,
    "vgg11": vgg_11,
    "resnet18": resnet_18,
}
"""Name in the catalogue -> the network itself, answering logits."""

MIN_SIZE = {"mlp": 1, "lenet5": 4, "vgg11": 2, "resnet18": 1}  # pixels


def initialise(net: nn.Module, seed: int) -> None:
    """Section 5.1's random weights; layers that it does not name get those that torch gives them.

    ModelError, with all weights as they were, where some can only stay so.
    """
    for module in net.modules():
        if list(module.parameters(recurse=False)) and not hasattr(module, "reset_parameters"):
            raise ModelError(
                f"the weights cannot be drawn at random: a {type(module).__name__} has weights of its own "
                "and no reset_parameters; start from the deployed weights"
            )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight, generator=generator)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, LINEAR_DEVIATION, generator=generator)
            elif callable(reset := getattr(module, "reset_parameters", None)):
                reset()
            if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _model(
    name: str,
    classes: int,
    channels: int,
    size: int,
    answer: str,
    times: float,
    seed: int,
    build: Build | None = None,
) -> Model:
    if min(classes, channels) < 1 or size < MIN_SIZE[name]:
        raise ModelError(
            f"{name}: classes and channels must be at least 1 and size at least {MIN_SIZE[name]} pixels, "
            f"got classes={classes}, channels={channels}, size={size}"
        )
    if answer not in ANSWERS:
        raise ModelError(f"{name}: answer must be one of {', '.join(ANSWERS)}, got {answer!r}")
    with torch.device("meta"):
        net = (build or ARCHITECTURES[name])(classes, channels, size)
    net = net.to_empty(device="cpu")
    initialise(net, seed)
    module = net if answer == "logits" and times == 1.0 else Probabilities(net, times)
    return Model(module, (TensorSpec("x", "FP32", (channels, size, size)),), ("y",))
