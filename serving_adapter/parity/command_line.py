"""`rrl-parity`: trains and evaluates parity models (ParM).

rrl-parity train-base --architecture lenet5 --data digits --out base.safetensors
rrl-parity train --model base.safetensors --data digits --k 2 --out parity.safetensors
rrl-parity evaluate --model base.safetensors --parity parity.safetensors --data digits
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import UseAppendAction

from serving_adapter.models import CLASSIFIERS
from serving_adapter.models.classifiers import initialise, network
from serving_adapter.models.exported import SUFFIXES as EXPORTED
from serving_adapter.models.loading import load_model
from serving_adapter.models.model import Model
from serving_adapter.models.parity_metadata import (
    ParityMetadata,
    identity,
    read_architecture,
    read_parity_metadata,
)
from serving_adapter.models.weights_files import save_weights
from serving_adapter.options import Command, fail, in_a_sentence, parse_command
from serving_adapter.parity.coding import ENCODERS
from serving_adapter.parity.datasets import Dataset, are_images, load_dataset
from serving_adapter.parity.evaluation import Coding, Evaluation, evaluate
from serving_adapter.parity.training import (
    ClassificationTask,
    Interrupted,
    ParityTask,
    Trained,
    TrainingSettings,
    TrainingTask,
    TrainingWatch,
    train,
)

INTERRUPTED = 130
UNAVAILABLE_SHARES = (0.01, 0.02, 0.05, 0.1)  # f, of Eq. (1)


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """How to train, for whatever is trained."""

    data: str
    """digits, cifar10, or FILE.npz with x (N, *item) and, for labels, y (N,); a file with x alone is recorded
    traffic."""
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
    data_folder: Path | None = None
    """Where cifar10.zip is (default: shared/data beside the project's folder)."""

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
    """Trains a classifier to be deployed."""

    architecture: Literal["mlp", "lenet5", "vgg11", "resnet18"]
    """Of the catalogue."""
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
    package.module:factory; one input, and one output with a number for each class."""
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
    """Images: digits, cifar10 or FILE.npz; the test part is used."""
    seed: int = 0
    """Of the random groups."""
    data_folder: Path | None = None
    """Where cifar10.zip is."""


# --- train-base and train ---------------------------------------------------------------------------


def train_base(options: TrainBaseOptions) -> None:
    dataset = load_dataset(options.data, options.data_folder)
    if dataset.classes is None:
        raise ValueError(f"{options.data} has no labels 'y', which a deployed model is trained with")
    if not are_images(dataset.training.x):
        raise ValueError(
            f"the catalogue's networks are for images (N, channels, size, size), those of {options.data} are "
            f"{dataset.training.x.shape}"
        )
    _, channels, size, _ = dataset.training.x.shape
    model_options = {
        "classes": str(dataset.classes),
        "channels": str(channels),
        "size": str(size),
        "answer": options.answer,
    }
    net = network(load_model(options.architecture, model_options | {"seed": str(options.seed)}).module)
    task = ClassificationTask(dataset.training, options.settings())
    trained = _trained(net, task, options)
    save_weights(options.out, trained.net, options.architecture, model_options)
    _checkpoint(options).unlink(missing_ok=True)
    _say(f"{options.out}: validation accuracy {trained.score:.1%}", trained)


def train_parity(options: ParityTrainOptions) -> None:
    dataset = load_dataset(options.data, options.data_folder)
    architecture, model_options = _architecture(options.model, options.model_option)
    of = identity(options.model, model_options)
    deployed, coding = _load(options.model, model_options), options.coding()
    check_fit(deployed, dataset, coding)
    served = model_options.get("answer", "logits")
    needed = "probabilities" if options.loss == "cross-entropy" else "logits"
    if options.loss != "mse" and served != needed:
        raise ValueError(
            f"--loss {options.loss} needs a deployed model that answers {needed}, {options.model} answers "
            f"{served}: use another --loss, or rrl-parity train-base --answer {needed}"
        )
    net = network(_load(options.model, model_options).module)
    if options.start == "random":
        initialise(net, options.seed)
    task = ParityTask(deployed.module, coding, dataset.training, options.loss, options.settings())
    if options.loss == "mse" and architecture not in CLASSIFIERS and _are_probabilities(task):
        raise ValueError(
            f"{options.model} answers probabilities: a network that ends in a softmax cannot learn their "
            "sum; have its factory answer logits"
        )
    task.identity += f" from {options.start} weights"
    trained = _trained(net, task, options)
    if options.loss == "cross-entropy":
        model_options |= {"answer": "probabilities", "times": str(coding.k)}
    elif architecture in CLASSIFIERS:
        model_options |= {"answer": "logits"}
    parity = ParityMetadata(coding.k, coding.row, coding.r, coding.encoder, of)
    save_weights(options.out, trained.net, architecture, model_options, parity)
    _checkpoint(options).unlink(missing_ok=True)
    _say(f"{options.out}: validation accuracy of reconstructions {trained.score:.1%}", trained)


def _are_probabilities(task: ParityTask) -> bool:
    outputs = task.validation_outputs
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(axis=-1), 1.0, atol=1e-3))


def _checkpoint(options: TrainingFlags) -> Path:
    return options.out.with_name(f"{options.out.name}.checkpoint")


def _architecture(model: str, texts: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """What a deployed model is an instance of: its factory's reference and options."""
    options = dict(_key_and_value(text) for text in texts)
    suffix = Path(model).suffix
    if suffix in EXPORTED:
        raise ValueError(f"{model} is an exported file, which cannot be trained: give its factory instead")
    if suffix != ".safetensors":
        return model, options
    if read_parity_metadata(Path(model)) is not None:
        raise ValueError(f"{model} is a parity model itself: give the deployed model")
    if options:
        raise ValueError(f"the weights file {model} takes no --model-option: it has its own")
    architecture, own = read_architecture(Path(model))
    return architecture, dict(own)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"cannot read --model-option {text!r}; expected KEY=VALUE")
    return key, value


def _load(model: str, options: dict[str, str]) -> Model:
    return load_model(model, {} if Path(model).suffix == ".safetensors" else options)


def check_fit(deployed: Model, dataset: Dataset, coding: Coding) -> None:
    """ValueError unless the model takes such data, groups can be encoded, and answers be summed."""
    if len(deployed.inputs) != 1:
        raise ValueError("parity models are trained for models with one input")
    spec = deployed.inputs[0]
    if spec.shape != dataset.training.x.shape[1:]:
        raise ValueError(
            f"the model takes items of {spec.shape}, those of {dataset.name} are "
            f"{dataset.training.x.shape[1:]}"
        )
    ENCODERS[coding.encoder].check(spec, coding.k)
    if spec.datatype != "FP32":
        raise ValueError(f"parity models are trained for inputs of FP32, the model takes {spec.datatype}")
    with torch.inference_mode():
        answer = deployed.module(torch.from_numpy(dataset.training.x[:2].copy()))
    if not isinstance(answer, torch.Tensor) or answer.ndim != 2 or not answer.is_floating_point():
        raise ValueError("parity models are trained for models that answer one number for each class")


def _trained(net: torch.nn.Module, task: TrainingTask, options: TrainingFlags) -> Trained:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    columns = [TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns += [TextColumn("validated {task.fields[score]}")]
    checkpoint = _checkpoint(options)
    with _told_to_stop() as stopping, Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("steps", total=None, score="-")

        def on_step(done: int, steps: int, score: float) -> None:
            progress.update(
                bar, completed=done, total=steps, score=f"{score:.1%}" if score >= 0 else "not yet"
            )

        print(f"training with {len(task.images.x):,} images on {options.device}", file=sys.stderr, flush=True)
        try:
            return train(net, task, options.settings(), TrainingWatch(on_step, stopping, checkpoint))
        except Interrupted:
            progress.stop()
            print(f"interrupted; the same command goes on from {checkpoint}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None


@contextlib.contextmanager
def _told_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or a polite kill) was met; a second one ends the command at once."""
    met: list[int] = []

    def meet(signum: int, frame: FrameType | None) -> None:
        met.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {signum: signal.signal(signum, meet) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(met)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _say(result: str, trained: Trained) -> None:
    print(f"{result}, after {trained.seconds:.0f} s")


# --- evaluate ---------------------------------------------------------------------------------------


def report(options: EvaluateOptions) -> None:
    dataset = load_dataset(options.data, options.data_folder)
    architecture, model_options = _architecture(options.model, options.model_option)
    deployed = _load(options.model, model_options)
    named = {"architecture": architecture}
    of = identity(options.model, model_options)
    codings = [_coding_of(path, options.model, of) for path in options.parity]
    parities = [
        (coding, load_model(str(path), named)) for coding, path in zip(codings, options.parity, strict=True)
    ]
    for coding, _ in parities:
        check_fit(deployed, dataset, coding)
    found = evaluate(
        deployed.module,
        [(coding, model.module) for coding, model in parities],
        dataset.test.x,
        dataset.test.y,
        seed=options.seed,
    )
    Console().print(_table(found, dataset, parities[0][0]))


def _coding_of(path: Path, deployed: str, of: str) -> Coding:
    metadata = read_parity_metadata(path)
    if metadata is None:
        raise ValueError(f"{path} is no parity model: its header has no 'parity'")
    if metadata.of != of:
        raise ValueError(f"{path} was trained for another deployed model than {deployed}")
    return Coding(metadata.k, metadata.row, metadata.r, metadata.encoder)


def _table(found: Evaluation, dataset: Dataset, coding: Coding) -> Table:
    labels = "the labels" if dataset.test.y is not None else "the deployed model's answers"
    table = Table(f"accuracy by {labels}", *(f"{lost} lost of {coding.k}" for lost in found.degraded))
    table.add_row("A_a: available", *(f"{found.available:.2%}" for _ in found.degraded))
    table.add_row("A_d: reconstructed", *(f"{value:.2%}" for value in found.degraded.values()))
    for f in UNAVAILABLE_SHARES:
        table.add_row(
            f"A_o: {f:.0%} unavailable", *(f"{found.overall(f, lost):.2%}" for lost in found.degraded)
        )
    table.add_row("floor: a default answer", *(f"{found.default:.2%}" for _ in found.degraded))
    return table


COMMANDS = {
    "train-base": Command(TrainBaseOptions, train_base, "train a classifier to be deployed"),
    "train": Command(ParityTrainOptions, train_parity, "train a parity model for a deployed model"),
    "evaluate": Command(EvaluateOptions, report, "report A_a, A_d and A_o(f)"),
}


def main(argv: list[str] | None = None) -> None:
    run = parse_command("rrl-parity", COMMANDS, argv)
    try:
        run()
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
