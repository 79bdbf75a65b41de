"""The options of `rrl-parity`'s commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tyro.conf import UseAppendAction

from serving_adapter.parity.evaluation import Coding
from serving_adapter.parity.training import TrainingSettings

ScoreName = Literal["top-1", "top-5", "iou", "r2"]


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """How to train, for whatever is trained."""

    data: str
    """digits, cifar10, cat-dog, fashion-mnist, fashion-boxes, or FILE.npz with x (N, *item) and, for labels,
    y: classes (N,) or numbers (N, d). A file with x alone is recorded traffic."""
    out: Path
    """The weights file to write; a training that is interrupted goes on from OUT.checkpoint."""
    epochs: int = 100
    """Passes through the training images."""
    batch_size: int = 64
    """Images a step."""
    learning_rate: float = 1e-3
    """Of Adam; it decays to zero along a cosine."""
    decay: bool = True
    """Let the learning rate decay."""
    weight_decay: float = 1e-5
    """L2 regularisation."""
    shift_pixels: int = 0
    """Augmentation: move images by up to as many pixels."""
    flip: bool = False
    """Augmentation: mirror half of the images."""
    bf16: bool = False
    """Compute in bfloat16, where the processor is quick at it."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """Where to train."""
    threads: int | None = None
    """Of the CPU (default: torch's choice)."""
    seed: int = 0
    """Of the weights and of what is drawn."""
    score: ScoreName | None = None
    """How answers are judged: top-1 and top-5 of classes, iou of boxes, r2 of numbers (default: iou of
    fashion-boxes, r2 of other numbers, else top-1). Recorded traffic of a regressor needs iou or r2."""
    data_folder: Path | None = None
    """Where cifar10.zip or Fashion-MNIST's files are (default: shared/data beside the project's folder, and
    where Debian's dataset-fashion-mnist puts them)."""

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {self.threads}")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError):
            raise ValueError(f"--device {self.device} is not there: use --device cpu") from None
        if self.out.suffix != ".safetensors":
            raise ValueError(f"--out must be a file NAME.safetensors, got {self.out}")
        if self.out.exists():
            raise ValueError(f"{self.out} exists already: name another --out, or delete it")
        self.settings()

    def settings(self) -> TrainingSettings:
        return TrainingSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            decay=self.decay,
            weight_decay=self.weight_decay,
            shift_pixels=self.shift_pixels,
            flip=self.flip,
            bf16=self.bf16,
            device=self.device,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class TrainBaseOptions(TrainingFlags):
    """Trains a classifier, or a regressor, to be deployed."""

    architecture: Literal["mlp", "lenet5", "vgg11", "resnet18"]
    """Of the catalogue."""
    model_option: UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE for the architecture, as width=16 for resnet18; again for more options."""
    answer: Literal["logits", "probabilities"] = "logits"
    """What it serves; a parity model of --loss cross-entropy needs probabilities."""
    label_smoothing: float = 0.1
    """Share of each label that is spread over all classes; it also keeps logits small, and small logits are
    easier to reconstruct."""

    def settings(self) -> TrainingSettings:
        return TrainingSettings(**(vars(super().settings()) | {"label_smoothing": self.label_smoothing}))


@dataclass(frozen=True, kw_only=True)
class ParityTrainOptions(TrainingFlags):
    """Trains a parity model for a deployed model."""

    model: str
    """The deployed model: a weights file (of rrl-parity train-base), a name of the catalogue, or
    package.module:factory; one input, and one output of numbers, one for each class if there are classes."""
    model_option: UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE for the model's factory; again for more options."""
    k: int = 2
    """Queries of a coding group."""
    r: int = 1
    """Parities of a coding group: as many answers may be lost at once."""
    row: int = 0
    """Which of the r parities this model is for."""
    encoder: Literal["sum", "concat"] = "sum"
    """How queries make a parity query."""
    loss: Literal["mse", "decoded", "cross-entropy"] = "mse"
    """mse: against the deployed model's summed answers; decoded: of the answers that decoding will give;
    cross-entropy: against the summed labels (the paper's for concat; mse reconstructs better here)."""
    start: Literal["deployed", "random"] = "deployed"
    """The weights to start from."""
    architecture: Literal["deployed", "mlp", "lenet5", "vgg11", "resnet18"] = "deployed"
    """Of the parity model; another than the deployed model's starts from random weights. A larger one
    may rebuild answers better, and does so later."""
    architecture_option: UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE for another architecture; again for more options."""

    def __post_init__(self) -> None:
        self.coding()
        super().__post_init__()

    def coding(self) -> Coding:
        return Coding(self.k, self.row, self.r, self.encoder)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Reports how accurate a deployed model is, and what its parity models reconstruct."""

    model: str
    """The deployed model, as for rrl-parity train."""
    model_option: UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE for the model's factory; again for more options."""
    parity: UseAppendAction[tuple[Path, ...]]
    """A parity model's weights file; again for each further row of a code with r above 1."""
    data: str
    """Images, as for rrl-parity train; the test part is used."""
    score: ScoreName | None = None
    """How answers are judged, as for rrl-parity train."""
    seed: int = 0
    """Of the random groups."""
    data_folder: Path | None = None
    """Where cifar10.zip or Fashion-MNIST's files are."""
