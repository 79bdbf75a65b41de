"""The pairs of `parity-accuracy`: data, networks, how long each is trained, and what the paper says of it.

A pair is called DATA/DEPLOYED, or DATA/DEPLOYED+PARITY where the parity model is another network. `-w16` is a
ResNet of a quarter of ResNet-18's width, which two cores can train.

| pair | in the paper (section 5) |
|---|---|
| `fashion-mnist/mlp`, `/lenet5`, `/resnet18-w16` | the same data and networks, of full width |
| `cat-dog/resnet18-w16` | Asirra's cats and dogs, larger photographs |
| `cifar10/resnet18`, `/resnet18-w16` | the same data, of full width |
| `fashion-boxes/...` | birds of CUB-200 with ResNet-18, 0.95 and 0.67 of IoU |
| `.../lenet5+resnet18-w16` | none: section 4.3 only says that it may be |
| `digits/...`, `cifar10/mlp`, `/lenet5`, `/vgg11` | none |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from serving_adapter.parity.training import TrainingSettings


class Network(NamedTuple):
    """An architecture of the catalogue, and its options beside those that the data gives."""

    architecture: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.architecture, *(f"{key[0]}{value}" for key, value in self.options)])


MLP, LENET, VGG, RESNET = Network("mlp"), Network("lenet5"), Network("vgg11"), Network("resnet18")
NARROW_RESNET = Network("resnet18", (("width", "16"),))


@dataclass(frozen=True)
class Recipe:
    """How a pair's deployed model is trained, and how its parity models."""

    data: str
    network: Network
    deployed: TrainingSettings
    parity: TrainingSettings
    parity_network: Network | None = None
    """None: the deployed model's, from its weights; another one starts from random weights."""

    @property
    def pair(self) -> str:
        parity = "" if self.parity_network is None else f"+{self.parity_network.name}"
        return f"{self.data}/{self.network.name}{parity}"


def _recipe(
    data: str,
    network: Network,
    deployed_epochs: int,
    parity_epochs: int,
    parity_network: Network | None = None,
    **options: Any,
) -> Recipe:
    deployed = TrainingSettings(epochs=deployed_epochs, label_smoothing=0.1, **options)
    parity = replace(deployed, epochs=parity_epochs, shift_pixels=0)
    return Recipe(data, network, deployed, parity, parity_network)


_ALL = (
    _recipe("fashion-mnist", MLP, 20, 100),
    _recipe("fashion-mnist", LENET, 20, 60),
    _recipe("fashion-mnist", NARROW_RESNET, 15, 40),
    _recipe("fashion-mnist", LENET, 20, 40, NARROW_RESNET),
    _recipe("cat-dog", NARROW_RESNET, 60, 120, shift_pixels=4, flip=True),
    _recipe("fashion-boxes", LENET, 20, 60),
    _recipe("fashion-boxes", NARROW_RESNET, 20, 40),
    _recipe("digits", MLP, 120, 220),
    _recipe("digits", LENET, 120, 200),
    _recipe("digits", VGG, 20, 40),
    _recipe("digits", RESNET, 20, 40),
    _recipe("cifar10", MLP, 20, 24, shift_pixels=2, flip=True),
    _recipe("cifar10", LENET, 20, 24, shift_pixels=2, flip=True),
    _recipe("cifar10", VGG, 30, 60, shift_pixels=4, flip=True, bf16=True),
    _recipe("cifar10", NARROW_RESNET, 30, 60, shift_pixels=4, flip=True),
    _recipe("cifar10", RESNET, 30, 60, shift_pixels=4, flip=True, bf16=True),
)
RECIPES: Mapping[str, Recipe] = {recipe.pair: recipe for recipe in _ALL}
DEFAULT_PAIRS = ("fashion-mnist/mlp", "fashion-mnist/lenet5")

PAPER_DEGRADED = {  # (pair, code, k): A_d in percent, where the text gives it
    ("cifar10/resnet18", "sum", 2): 87,
    ("cifar10/resnet18", "sum", 4): 52,
    ("cifar10/resnet18", "concat", 2): 89,
    ("cifar10/resnet18", "concat", 4): 74,
}

REACH_POINTS = 6.5
FASHION_REACH_POINTS, BOXES_REACH_POINTS = 9.8, 28.0


def reach_points(pair: str) -> float:
    """A_a - A_d at k = 2 with the sum encoder that the paper has at most, in points of a hundred."""
    special = {"fashion-mnist": FASHION_REACH_POINTS, "fashion-boxes": BOXES_REACH_POINTS}
    return special.get(pair.partition("/")[0], REACH_POINTS)
