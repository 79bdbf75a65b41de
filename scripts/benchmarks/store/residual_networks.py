"""TrIMS's networks with shortcuts: ResNet in both versions, ResNeXt, Wide ResNet."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from scripts.benchmarks.store.plain_networks import CLASSES


class Form(NamedTuple):
    """What makes a network of the family."""

    depths: tuple[int, int, int, int]  # blocks in each of the four parts
    is_bottleneck: bool = True
    is_v2: bool = False  # normalises before each convolution
    groups: int = 1
    group_width: int = 64  # of the first part's bottlenecks
    classes: int = CLASSES


class Block(nn.Module):
    """Convolutions beside a shortcut, which is one itself where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, form: Form) -> None:
        super().__init__()
        self.is_v2 = form.is_v2
        within = width * form.groups * form.group_width // 64
        out = 4 * width if form.is_bottleneck else width
        if form.is_bottleneck:
            sizes = [
                (channels, within, 1, 1, 1),
                (within, within, 3, stride, form.groups),
                (within, out, 1, 1, 1),
            ]
        else:
            sizes = [(channels, out, 3, stride, 1), (out, out, 3, 1, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, side, s, padding=side // 2, groups=groups, bias=False)
            for a, b, side, s, groups in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(a if form.is_v2 else b) for a, b, *_ in sizes)
        self.shortcut: nn.Module = nn.Identity()
        if channels != out or stride != 1:
            convolution = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = convolution if form.is_v2 else nn.Sequential(convolution, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return self._second_version(x) if self.is_v2 else self._first_version(x)

    def _first_version(self, x: Tensor) -> Tensor:
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(torch.relu(y) if i else y))
        return torch.relu(y + self.shortcut(x))

    def _second_version(self, x: Tensor) -> Tensor:
        y, beside = x, x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = torch.relu(norm(y))
            if i == 0 and not isinstance(self.shortcut, nn.Identity):
                beside = self.shortcut(y)
            y = convolution(y)
        return y + beside


def residual_network(form: Form) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 64
    for i, (width, depth) in enumerate(zip((64, 128, 256, 512), form.depths, strict=True)):
        for j in range(depth):
            blocks.append(Block(channels, width, 2 if i and not j else 1, form))
            channels = 4 * width if form.is_bottleneck else width
    end = [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)] if form.is_v2 else []
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(3, 2, padding=1), *blocks, *end),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, form.classes)),
    )


FORMS = {
    "LocationNet": Form((3, 4, 23, 3), classes=15_527),
    "ResNet101": Form((3, 4, 23, 3)),
    "ResNet101-v2": Form((3, 4, 23, 3), is_v2=True),
    "ResNet152": Form((3, 8, 36, 3)),
    "ResNet152-11k": Form((3, 8, 36, 3), classes=11_221),
    "ResNet152-v2": Form((3, 8, 36, 3), is_v2=True),
    "ResNet18-v2": Form((2, 2, 2, 2), is_bottleneck=False, is_v2=True),
    "ResNet200-v2": Form((3, 24, 36, 3), is_v2=True),
    "ResNet269-v2": Form((3, 30, 48, 8), is_v2=True),
    "ResNet34-v2": Form((3, 4, 6, 3), is_bottleneck=False, is_v2=True),
    "ResNet50": Form((3, 4, 6, 3)),
    "ResNet50-v2": Form((3, 4, 6, 3), is_v2=True),
    "ResNeXt101": Form((3, 4, 23, 3), groups=32, group_width=4),
    "ResNeXt101-32x4d": Form((3, 4, 23, 3), groups=32, group_width=4),
    "ResNeXt26-32x4d": Form((2, 2, 2, 2), groups=32, group_width=4),
    "ResNeXt50": Form((3, 4, 6, 3), groups=32, group_width=4),
    "ResNeXt50-32x4d": Form((3, 4, 6, 3), groups=32, group_width=4),
    "WRN50-v2": Form((3, 4, 6, 3), is_v2=True, group_width=128),
}
"""By the paper's name; LocationNet is a ResNet101 for the cells of a map."""
