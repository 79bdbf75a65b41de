"""The networks of TrIMS whose large variants can be made exactly: the input grows, and with it one layer.

The paper's Table 4 multiplies the sides of the input image by 1 to 4. The first fully connected layer of
AlexNet and VGG16 grows with the pixels of the last feature map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

CLASSES = 1000


def vgg16(times: int = 1) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *_classifier(512 * (7 * times) ** 2))


def alexnet(times: int = 1) -> nn.Module:
    side = {1: 6, 2: 13, 3: 20, 4: 27}[times]
    return nn.Sequential(
        *(nn.Conv2d(3, 96, 11, stride=4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        nn.Flatten(),
        *_classifier(256 * side**2),
    )


def _classifier(features: int) -> list[nn.Module]:
    return [
        *(nn.Linear(features, 4096), nn.ReLU(inplace=True)),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
        nn.Linear(4096, CLASSES),
    ]


class Fire(nn.Module):
    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.left = nn.Conv2d(squeezed, expanded, 1)
        self.right = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.left(x), self.right(x)], 1))


def squeezenet() -> nn.Module:
    """SqueezeNet 1.0."""
    return nn.Sequential(
        *(nn.Conv2d(3, 96, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256)),
        *(nn.MaxPool2d(3, 2, ceil_mode=True), Fire(512, 64, 256), nn.Conv2d(512, CLASSES, 1)),
        *(nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            blocks.append(Bottleneck(channels, width, stride if i == 0 else 1))
            channels = 4 * width
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(3, 2, padding=1), *blocks),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES)),
    )


# By the paper's name: how to build it, and the sides of its input image.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "SqueezeNet-v1.0": (squeezenet, 224),
    "ResNet50": (resnet50, 224),
    "AlexNet": (alexnet, 227),
    "VGG16": (vgg16, 224),
    **{f"AlexNet-S{n}": (partial(alexnet, n), 227 * n) for n in (2, 3, 4)},
    **{f"VGG16-S{n}": (partial(vgg16, n), 224 * n) for n in (2, 3, 4)},
}


def on_meta(name: str) -> nn.Module:
    """The network without weights, in evaluation mode."""
    with torch.device("meta"):
        return NETWORKS[name][0]().eval()


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """Its weights and buffers; what merely counts training batches is not in a weight file."""
    state = on_meta(name).state_dict()
    return {key: tuple(tensor.shape) for key, tensor in state.items() if tensor.is_floating_point()}


def image_for(name: str) -> Tensor:
    side = NETWORKS[name][1]
    return torch.linspace(-1, 1, 3 * side * side).view(1, 3, side, side)
