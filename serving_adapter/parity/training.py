"""Training of deployed classifiers and of parity models (ParM, sections 4.4 and 5.1).

| symbol | meaning | shape |
|---|---|---|
| X_i | sample i of a group | (batch, *item) |
| F | the deployed model, fixed | (batch, classes) |
| c_i | weight of output i in the parity's output, a row of `coding.coefficients` | |
| P | the parity query, encode(X_1 .. X_k) | (batch, *item) |
| F_P | the parity model, of F's architecture | (batch, classes) |
| R_j | reconstruction (F_P(P) - sum over i != j of c_i F(X_i)) / c_j | (batch, classes) |

Losses of a parity model:

- `mse`: (F_P(P) - sum c_i F(X_i))², section 4.4.
- `cross-entropy`: between softmax F_P(P) and the normalised sum of the one-hot labels, section 5.2.3. The
  model then serves k softmax, so F must answer probabilities.
- `decoded`: the cross-entropy of the answers that the decoder will give, R_j against F(X_j), mean over j. It
  spends the network on what decoding leaves open: that F_P(P) is far from the sum costs nothing as long as
  every reconstruction is right. F must answer logits.

Each step draws one batch of samples and groups it with itself in k - 1 random orders. So one pass through the
deployed model gives as many parities as samples. What is drawn depends on the seed alone: a training that was
interrupted and resumed ends with the same weights. Nothing here prints.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from serving_adapter.models.classifiers import Probabilities
from serving_adapter.models.weights_files import write_whole
from serving_adapter.parity.datasets import Images, are_images
from serving_adapter.parity.evaluation import Coding, accuracy, answers, degraded_accuracies, rounds_for

VALIDATION_SHARE = 0.1  # of the training images
MAX_VALIDATIONS = 50  # at most, spread over the training
VALIDATION_RECONSTRUCTIONS = 2_000  # few images are grouped anew until there are as many
WARM_UP_STEPS = 100
PARITY_LOSSES = ("mse", "cross-entropy", "decoded")


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; the defaults are those of section 5.1 but for the decaying learning rate."""

    epochs: int = 100  # passes through the training images
    batch_size: int = 64
    learning_rate: float = 1e-3  # of Adam
    decay: bool = True  # of the learning rate, along a cosine to zero
    weight_decay: float = 1e-5
    shift_pixels: int = 0  # augmentation: images are moved by up to as many
    flip: bool = False  # augmentation: half of the images are mirrored
    label_smoothing: float = 0.0  # of the deployed model's cross-entropy
    bf16: bool = False  # matrix products in bfloat16
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2:
            raise ValueError(
                f"epochs must be at least 1 and the batch size at least 2, "
                f"got {self.epochs} and {self.batch_size}"
            )
        if not 0 < self.learning_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ValueError(
                f"the learning rate must be above 0 and the weight decay not negative, "
                f"got {self.learning_rate:g} and {self.weight_decay:g}"
            )
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label smoothing must be from 0 to below 1, got {self.label_smoothing:g}")
        if self.shift_pixels < 0:
            raise ValueError(f"the shift must not be negative, got {self.shift_pixels}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"the seed must be from 0 to 2^64 - 1, got {self.seed}")


@dataclass
class Trained:
    """A network with the weights of its best validation."""

    net: nn.Module
    score: float
    """Its validation accuracy: A_a of a deployed model, A_d of a parity model."""
    seconds: float
    processor_seconds: float


class Interrupted(Exception):
    """The training was told to stop; its checkpoint, if it has one, is written."""


@dataclass
class TrainingWatch:
    """What goes on outside of a training: who wants to know, who wants it to stop, where it is kept."""

    on_step: Callable[[int, int, float], None] = lambda done, steps, score: None
    stopping: Callable[[], bool] = lambda: False
    checkpoint: Path | None = None


class TrainingTask(Protocol):
    """What a network is trained for."""

    images: Images
    identity: str
    """Tells tasks on the same images apart."""

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor: ...

    def score(self, net: nn.Module) -> float: ...


def split(images: Images) -> tuple[Images, Images]:
    """Training and validation images. The split is fixed, so no parity model sees what validated F."""
    order = np.random.default_rng(0).permutation(len(images.x))
    count = max(1, round(VALIDATION_SHARE * len(order)))
    chosen = order[count:], order[:count]
    training, validation = (
        Images(images.x[part], None if images.y is None else images.y[part]) for part in chosen
    )
    return training, validation


# --- the two tasks ----------------------------------------------------------------------------------


class ClassificationTask:
    """Cross-entropy against the labels."""

    def __init__(self, images: Images, settings: TrainingSettings) -> None:
        if images.y is None:
            raise ValueError("a deployed model is trained with labelled images: the data has no 'y'")
        self.images, self.validation = split(images)
        self.labels = torch.from_numpy(self.images.y).to(settings.device)
        self.settings, self.identity = settings, "classification"

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor:
        outputs = net(x.to(self.settings.device)).float()
        labels = self.labels[chosen.to(self.settings.device)]
        return F.cross_entropy(outputs, labels, label_smoothing=self.settings.label_smoothing)

    def score(self, net: nn.Module) -> float:
        assert self.validation.y is not None
        return accuracy(answers(net, self.validation.x, self.settings.device), self.validation.y)


class ParityTask:
    """One of the losses of a parity model, for a deployed model that stays as it is."""

    def __init__(
        self, deployed: nn.Module, coding: Coding, images: Images, loss: str, settings: TrainingSettings
    ) -> None:
        if loss not in PARITY_LOSSES:
            raise ValueError(f"unknown loss {loss!r}; known: {', '.join(PARITY_LOSSES)}")
        if loss == "cross-entropy" and coding.row:
            raise ValueError(
                f"the loss cross-entropy is for row 0, whose outputs count alike, not for row {coding.row}: "
                "use mse or decoded"
            )
        self.deployed = deployed.to(settings.device)
        self.coding, self.loss_name, self.settings = coding, loss, settings
        self.images, self.validation = split(images)
        if len(self.validation.x) < coding.k:
            raise ValueError(f"{len(images.x)} images are too few to train and validate with k={coding.k}")
        self.weights = [float(weight) for weight in coding.weights]
        self.validation_outputs = answers(deployed, self.validation.x, settings.device)
        deployed_digest = blake3(self.validation_outputs.tobytes()).hexdigest()
        self.identity = f"{coding} {loss} of {deployed_digest}"
        labels = self.validation.y
        self.validation_labels = self.validation_outputs.argmax(axis=-1) if labels is None else labels
        classes = self.validation_outputs.shape[-1]
        if images.y is not None and images.y.max() >= classes:
            raise ValueError(
                f"the labels go up to {images.y.max()}, the deployed model answers {classes} classes"
            )
        self.labels: Tensor | None = None
        if loss == "cross-entropy":
            labels = self.images.y
            if labels is None:
                labels = answers(deployed, self.images.x, settings.device).argmax(axis=-1)
            self.labels = F.one_hot(torch.from_numpy(labels), classes).float().to(settings.device)

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor:
        device, k = self.settings.device, self.coding.k
        orders = [torch.arange(len(x)), *(torch.randperm(len(x), generator=draw) for _ in range(k - 1))]
        parities = torch.from_numpy(self.coding.encode([x[order].numpy() for order in orders]))
        outputs = net(parities.to(device)).float()
        if self.labels is not None:
            target = torch.stack([self.labels[chosen[order].to(device)] for order in orders]).mean(dim=0)
            return F.cross_entropy(outputs, target)
        with torch.no_grad():
            deployed = self.deployed(x.to(device)).float()
        terms = [
            weight * deployed[order.to(device)] for weight, order in zip(self.weights, orders, strict=True)
        ]
        if self.loss_name == "mse":
            return F.mse_loss(outputs, torch.stack(terms).sum(dim=0))
        return self._decoded(outputs, terms)

    def _decoded(self, outputs: Tensor, terms: Sequence[Tensor]) -> Tensor:
        """Mean over j of the cross-entropy of softmax R_j against softmax F(X_j)."""
        missed = outputs - torch.stack(list(terms)).sum(dim=0)
        losses = []
        for term, weight in zip(terms, self.weights, strict=True):
            answer = term / weight
            losses.append(F.cross_entropy(answer + missed / weight, F.softmax(answer, dim=-1)))
        return torch.stack(losses).mean()

    def score(self, net: nn.Module) -> float:
        """A_d by this parity alone, on the validation images."""
        x = self.validation.x
        served = serving(net, self.loss_name, self.coding.k)
        found = degraded_accuracies(
            [(self.coding, served)],
            x,
            self.validation_outputs,
            self.validation_labels,
            rounds=rounds_for(len(x), VALIDATION_RECONSTRUCTIONS),
            device=self.settings.device,
        )
        return found[1]


def serving(net: nn.Module, loss: str, k: int) -> nn.Module:
    """What a parity model serves of its network's outputs."""
    return Probabilities(net, float(k)) if loss == "cross-entropy" else net


# --- the loop ---------------------------------------------------------------------------------------


def train(
    net: nn.Module, task: TrainingTask, settings: TrainingSettings, watch: TrainingWatch | None = None
) -> Trained:
    """Trains `net` in place; Interrupted if `watch` says so, ValueError for another training's checkpoint.

    The last checkpoint stays, for who has the result to delete once that is safe.
    """
    training = _Training(net, task, settings, watch or TrainingWatch())
    training.resume()
    training.run()
    return training.finished()


class _Training:
    def __init__(
        self, net: nn.Module, task: TrainingTask, settings: TrainingSettings, watch: TrainingWatch
    ) -> None:
        if (settings.shift_pixels or settings.flip) and not are_images(task.images.x):
            raise ValueError(
                "only images (N, channels, size, size) can be moved or mirrored, "
                f"the data is {task.images.x.shape}"
            )
        net.requires_grad_(True)  # a model of the server has none
        if settings.bf16:  # convolutions in bfloat16 are quick in this layout only
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.net, self.task, self.settings, self.watch = net.to(settings.device), task, settings, watch
        self.x = torch.from_numpy(np.ascontiguousarray(task.images.x))
        self.optimiser = torch.optim.Adam(
            net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.draw = torch.Generator().manual_seed(settings.seed)
        self.steps_of_epoch = -(-len(self.x) // settings.batch_size)
        self.steps = settings.epochs * self.steps_of_epoch
        self.validate_every = self.steps_of_epoch * -(-settings.epochs // MAX_VALIDATIONS)
        self.done, self.best_score, self.seconds, self.processor_seconds = 0, -1.0, 0.0, 0.0
        self.best = self._weights()

    def run(self) -> None:
        began, processor_began = time.monotonic(), time.process_time()
        before, processor_before = self.seconds, self.processor_seconds
        self.net.train()
        while self.done < self.steps:
            if self.watch.stopping():
                self._keep()
                raise Interrupted
            self._step()
            self.seconds = before + time.monotonic() - began
            self.processor_seconds = processor_before + time.process_time() - processor_began
            if self.done % self.validate_every == 0 or self.done == self.steps:
                self._validate()
            self.watch.on_step(self.done, self.steps, self.best_score)

    def finished(self) -> Trained:
        self.net.load_state_dict(self.best)
        self.net.eval()
        return Trained(self.net, self.best_score, self.seconds, self.processor_seconds)

    def _step(self) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        chosen = torch.randint(len(self.x), (self.settings.batch_size,), generator=self.draw)
        x = augmented(self.x[chosen], self.settings.shift_pixels, self.settings.flip, self.draw)
        kind = self.settings.device.partition(":")[0]
        with torch.autocast(kind, torch.bfloat16, enabled=self.settings.bf16):
            loss = self.task.loss(self.net, x, chosen, self.draw)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.done += 1

    def _learning_rate(self) -> float:
        warm = min(1.0, (self.done + 1) / WARM_UP_STEPS)
        decayed = 0.5 * (1 + math.cos(math.pi * self.done / self.steps)) if self.settings.decay else 1.0
        return self.settings.learning_rate * warm * decayed

    def _validate(self) -> None:
        self.net.eval()
        score = self.task.score(self.net)
        self.net.train()
        if score >= self.best_score:  # of equals the one that was trained for longer
            self.best_score, self.best = score, self._weights()
        self._keep()

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}

    # A checkpoint: safetensors, with what is no tensor as JSON in its metadata.

    def _keep(self) -> None:
        if self.watch.checkpoint is None:
            return
        tensors = {"draw": self.draw.get_state()}
        tensors |= {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": tensor for name, tensor in state.items()}
        progress = {"training": self._identity, "done": self.done, "best_score": self.best_score}
        progress |= {"seconds": self.seconds, "processor_seconds": self.processor_seconds}
        whole = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
        write_whole(self.watch.checkpoint, save(whole, {"progress": json.dumps(progress)}))

    def resume(self) -> None:
        """Goes on from the checkpoint, where there is one."""
        path = self.watch.checkpoint
        if path is None or not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                progress = json.loads((file.metadata() or {})["progress"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if progress["training"] != self._identity:
                raise ValueError("it is of a training with other options or data")
            self._restore(progress, tensors)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"cannot go on from the checkpoint {path} ({error}): give the options it was made with, "
                "or delete it to begin anew"
            ) from None

    def _restore(self, progress: dict[str, float], tensors: dict[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}

        self.net.load_state_dict(part("net."))
        self.best = part("best.")
        state = self.optimiser.state_dict()
        count = len(state["param_groups"][0]["params"])
        state["state"] = {i: part(f"optimiser.{i}.") for i in range(count) if progress["done"]}
        self.optimiser.load_state_dict(state)
        self.draw.set_state(tensors["draw"])
        self.done, self.best_score = int(progress["done"]), progress["best_score"]
        self.seconds, self.processor_seconds = progress["seconds"], progress["processor_seconds"]

    @cached_property
    def _identity(self) -> str:
        """Tells trainings apart: their options, data and networks."""
        images = blake3(self.x.numpy().data.cast("B")).hexdigest()
        shapes = [tuple(tensor.shape) for tensor in self.net.state_dict().values()]
        text = f"{asdict(self.settings)} {shapes} {self.task.identity} {images}"
        return blake3(text.encode()).hexdigest()


def augmented(x: Tensor, shift_pixels: int, flip: bool, draw: torch.Generator) -> Tensor:
    """Every image (batch, channels, size, size) moved and mirrored at random; what moves in is zero."""
    if shift_pixels:
        count, channels, size, _ = x.shape
        moves = torch.randint(2 * shift_pixels + 1, (2, count, 1), generator=draw) + torch.arange(size)
        padded = F.pad(x, (shift_pixels,) * 4)
        image, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None]
        x = padded[image, channel, moves[0][:, None, :, None], moves[1][:, None, None, :]]
    if flip:
        mirrored = torch.rand(len(x), generator=draw) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
    return x
