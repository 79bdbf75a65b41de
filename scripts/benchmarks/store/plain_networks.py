"""TrIMS's networks without shortcuts: AlexNet and its kin, VGG, SqueezeNet, Network in Network, GoogLeNet.

The paper's Table 4 multiplies the sides of the input image by 1 to 4. The first fully connected layer of
AlexNet and VGG16 grows with the pixels of the last feature map.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 1000


def vgg(depths: tuple[int, ...] = (2, 2, 3, 3, 3), times: int = 1, classes: int = CLASSES) -> nn.Module:
    """VGG16, or VGG19 by its depths."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *_classifier(512 * (7 * times) ** 2, classes))


def alexnet(times: int = 1, groups: int = 1, classes: int = CLASSES) -> nn.Module:
    """AlexNet in one column; CaffeNet has its convolutions in two groups."""
    side = {1: 6, 2: 13, 3: 20, 4: 27}[times]
    return nn.Sequential(
        *(nn.Conv2d(3, 96, 11, stride=4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(96, 256, 5, padding=2, groups=groups), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 384, 3, padding=1, groups=groups), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1, groups=groups), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        nn.Flatten(),
        *_classifier(256 * side**2, classes),
    )


def _classifier(features: int, classes: int) -> list[nn.Module]:
    return [
        *(nn.Linear(features, 4096), nn.ReLU(inplace=True)),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
        nn.Linear(4096, classes),
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


def squeezenet(version: str = "1.0") -> nn.Module:
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    fires = [Fire(*sizes) for sizes in _FIRES]
    if version == "1.0":
        head: list[nn.Module] = [nn.Conv2d(3, 96, 7, stride=2), nn.ReLU(inplace=True), pool]
        fires[0] = Fire(96, 16, 64)
        body = [*fires[:3], pool, *fires[3:7], pool, fires[7]]
    else:
        head = [nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(inplace=True), pool]
        body = [*fires[:2], pool, *fires[2:4], pool, *fires[4:]]
    return nn.Sequential(
        *(*head, *body, nn.Conv2d(512, CLASSES, 1), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


_FIRES = (
    *((64, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128)),
    *((256, 48, 192), (384, 48, 192), (384, 64, 256), (512, 64, 256)),
)


def network_in_network() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, width, side, stride, padding in (
        *((3, 96, 11, 4, 0), (96, 256, 5, 1, 2), (256, 384, 3, 1, 1)),
        (384, 1024, 3, 1, 1),
    ):
        last = CLASSES if width == 1024 else width
        layers += [nn.Conv2d(channels, width, side, stride, padding), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(width, width, 1), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(width, last, 1), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2)] if width != 1024 else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Inception(nn.Module):
    def __init__(self, channels: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, to_three, three, to_five, five, pooled = widths
        self.one = nn.Conv2d(channels, one, 1)
        self.to_three, self.three = nn.Conv2d(channels, to_three, 1), nn.Conv2d(to_three, three, 3, padding=1)
        self.to_five, self.five = nn.Conv2d(channels, to_five, 1), nn.Conv2d(to_five, five, 5, padding=2)
        self.pool, self.pooled = nn.MaxPool2d(3, 1, padding=1), nn.Conv2d(channels, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            self.one(x),
            self.three(torch.relu(self.to_three(x))),
            self.five(torch.relu(self.to_five(x))),
            self.pooled(self.pool(x)),
        ]
        return torch.relu(torch.cat(parts, 1))


def googlenet() -> nn.Module:
    """The network as it is used: without the classifiers that helped its training."""
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    a = [Inception(192, (64, 96, 128, 16, 32, 32)), Inception(256, (128, 128, 192, 32, 96, 64))]
    b = [
        Inception(480, (192, 96, 208, 16, 48, 64)),
        Inception(512, (160, 112, 224, 24, 64, 64)),
        Inception(512, (128, 128, 256, 24, 64, 64)),
        Inception(512, (112, 144, 288, 32, 64, 64)),
        Inception(528, (256, 160, 320, 32, 128, 128)),
    ]
    c = [Inception(832, (256, 160, 320, 32, 128, 128)), Inception(832, (384, 192, 384, 48, 128, 128))]
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, padding=3), nn.ReLU(inplace=True), pool),
        *(nn.Conv2d(64, 64, 1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(inplace=True), pool),
        *(*a, pool, *b, pool, *c),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, CLASSES)),
    )
