"""The training of deployed models and of parity models (ParM, sections 4.4 and 5.1); for what, `tasks` says.

What is drawn depends on the seed alone. So a training that was interrupted and resumed ends with the same
weights. Nothing here prints.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
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

from serving_adapter.models.weights_files import write_whole
from serving_adapter.parity.datasets import Images, are_images

MAX_VALIDATIONS = 50  # at most, spread over the training
WARM_UP_STEPS = 100
SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that the seeds of all steps differ, in their low 32 bits too


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

    @property
    def augments(self) -> bool:
        """Whether images are changed at random."""
        return self.shift_pixels > 0 or self.flip

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
    """Its mean score on the validation images: A_a of a deployed model, A_d of a parity model."""
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
    validation: Images
    identity: str
    """Tells tasks on the same images and labels apart."""

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor: ...

    def score(self, net: nn.Module) -> float: ...


def train(
    net: nn.Module, task: TrainingTask, settings: TrainingSettings, watch: TrainingWatch | None = None
) -> Trained:
    """Trains `net` in place; Interrupted if `watch` says so.

    ValueError for another training's checkpoint, and where the training diverged. The last checkpoint of one
    that did not diverge stays, for who has the result to delete once that is safe.
    """
    training = _Training(net, task, settings, watch or TrainingWatch())
    training.resume()
    # What the caller draws from the global generators stays as it is.
    with torch.random.fork_rng([settings.device] if _is_cuda(settings.device) else []):
        training.run()
    return training.finished()


class _Training:
    def __init__(
        self, net: nn.Module, task: TrainingTask, settings: TrainingSettings, watch: TrainingWatch
    ) -> None:
        if settings.augments and not are_images(task.images.x):
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
        self.done, self.best_score, self.seconds, self.processor_seconds = 0, -math.inf, 0.0, 0.0
        self.best = self._weights()

    def run(self) -> None:
        began, processor_began = time.monotonic(), time.process_time()
        before, processor_before = self.seconds, self.processor_seconds
        self.net.train()
        while self.done < self.steps:
            if self.watch.stopping():
                self._keep()
                raise Interrupted
            self._seed_modules()
            self._step()
            self.seconds = before + time.monotonic() - began
            self.processor_seconds = processor_before + time.process_time() - processor_began
            if self.done % self.validate_every == 0 or self.done == self.steps:
                self._validate()
            self.watch.on_step(self.done, self.steps, self.best_score)

    def finished(self) -> Trained:
        if not math.isfinite(self.best_score):
            if self.watch.checkpoint is not None:  # nothing can go on from it
                self.watch.checkpoint.unlink(missing_ok=True)
            raise ValueError(
                "the training diverged: no validation had finite weights and a finite score; lower the "
                "learning rate, or scale the data"
            )
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

    def _seed_modules(self) -> None:
        """Dropout and the like draw from torch's global generators: by the seed and the step alone."""
        seed = (self.settings.seed + SEED_STEP * (self.done + 1)) % 2**64
        for generator in _global_generators(self.settings.device):
            generator.manual_seed(seed)

    def _learning_rate(self) -> float:
        warm = min(1.0, (self.done + 1) / WARM_UP_STEPS)
        decayed = 0.5 * (1 + math.cos(math.pi * self.done / self.steps)) if self.settings.decay else 1.0
        return self.settings.learning_rate * warm * decayed

    def _validate(self) -> None:
        self.net.eval()
        score = self.task.score(self.net)
        self.net.train()
        # Of equals the one that was trained for longer.
        if math.isfinite(score) and score >= self.best_score and self._is_sound():
            self.best_score, self.best = score, self._weights()
        self._keep()

    def _is_sound(self) -> bool:
        """Whether the weights are finite; a buffer may have infinities, as masks do."""
        finite = all(bool(parameter.isfinite().all()) for parameter in self.net.parameters())
        return finite and not any(bool(tensor.isnan().any()) for tensor in self.net.state_dict().values())

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
        parameters = self.optimiser.param_groups[0]["params"] if progress["done"] else []
        state["state"] = {
            i: {name: _laid_out_as(parameter, tensor) for name, tensor in part(f"optimiser.{i}.").items()}
            for i, parameter in enumerate(parameters)
        }
        self.optimiser.load_state_dict(state)
        self.draw.set_state(tensors["draw"])
        self.done, self.best_score = int(progress["done"]), progress["best_score"]
        self.seconds, self.processor_seconds = progress["seconds"], progress["processor_seconds"]

    @cached_property
    def _identity(self) -> str:
        """Tells trainings apart: their options, data and networks."""
        data = blake3()
        for array in (*self.task.images, *self.task.validation):
            if array is not None:
                data.update(f"{array.dtype} {array.shape}".encode())
                data.update(np.ascontiguousarray(array).data.cast("B"))
        shapes = [tuple(tensor.shape) for tensor in self.net.state_dict().values()]
        text = f"{asdict(self.settings)} {shapes} {self.task.identity} {data.hexdigest()}"
        return blake3(text.encode()).hexdigest()


def _laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """With its dimensions in the parameter's order: fused optimisers go through both in that of memory."""
    if tensor.shape != parameter.shape:
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"


def _global_generators(device: str) -> list[torch.Generator]:
    """The processor's, and that of the GPU in use."""
    if not _is_cuda(device):
        return [torch.default_generator]
    index = torch.device(device).index
    return [
        torch.default_generator,
        torch.cuda.default_generators[torch.cuda.current_device() if index is None else index],
    ]


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
