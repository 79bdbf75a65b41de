"""`rrl-parity`: trains and evaluates parity models (ParM).

rrl-parity train-base --architecture lenet5 --data digits --out base.safetensors
rrl-parity train --model base.safetensors --data digits --k 2 --out parity.safetensors
rrl-parity evaluate --model base.safetensors --parity parity.safetensors --data digits
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from serving_adapter.flags.parsing import Command, fail, in_a_sentence, parse_command
from serving_adapter.models import CLASSIFIERS
from serving_adapter.models.classifiers import initialise, network
from serving_adapter.models.loading import load_model
from serving_adapter.models.parity_metadata import (
    ParityMetadata,
    identity,
    read_parity_metadata,
)
from serving_adapter.models.weights_files import save_weights
from serving_adapter.parity.datasets import Dataset, are_images, load_dataset
from serving_adapter.parity.deployed import architecture as deployed_architecture
from serving_adapter.parity.deployed import check_fit, load, options_of, outputs_for
from serving_adapter.parity.evaluation import Coding, Evaluation, evaluate
from serving_adapter.parity.options import (
    EvaluateOptions,
    ParityTrainOptions,
    TrainBaseOptions,
    TrainingFlags,
)
from serving_adapter.parity.scoring import Score, score_for
from serving_adapter.parity.tasks import ParityTask, check_answers, deployed_task
from serving_adapter.parity.training import Interrupted, Trained, TrainingTask, TrainingWatch, train
from serving_adapter.whole_files import check_place

INTERRUPTED = 130
UNAVAILABLE_SHARES = (0.01, 0.02, 0.05, 0.1)  # f, of Eq. (1)


# --- train-base and train ---------------------------------------------------------------------------


def train_base(options: TrainBaseOptions) -> None:
    check_place(options.out)
    dataset = load_dataset(options.data, options.data_folder)
    if dataset.outputs is None:
        raise ValueError(f"{options.data} has no labels 'y', which a deployed model is trained with")
    if not are_images(dataset.training.x):
        raise ValueError(
            f"the catalogue's networks are for images (N, channels, size, size), those of {options.data} are "
            f"{dataset.training.x.shape}"
        )
    score = _score(options.score, dataset)
    if options.answer != "logits" and not score.takes_classes:
        raise ValueError("--answer probabilities is for classes, and the labels are numbers: leave it out")
    model_options = _for_images(dataset, dataset.outputs) | {"answer": options.answer}
    model_options |= options_of(options.model_option)
    model = load_model(options.architecture, model_options | {"seed": str(options.seed)})
    check_answers(score, dataset.training.y, outputs_for(model, dataset))
    task = deployed_task(dataset.training, options.settings(), score)
    trained = _trained(network(model.module), task, options)
    save_weights(options.out, trained.net, options.architecture, model_options)
    _checkpoint(options).unlink(missing_ok=True)
    _say(f"{options.out}: validation {_called(score)} {_shown(score, trained.score)}", trained)


def train_parity(options: ParityTrainOptions) -> None:
    check_place(options.out)
    dataset = load_dataset(options.data, options.data_folder)
    named, model_options = deployed_architecture(options.model, options.model_option)
    of = identity(options.model, model_options)
    deployed, coding = load(options.model, model_options), options.coding()
    check_fit(deployed, dataset, coding)
    served = model_options.get("answer", "logits")
    needed = "probabilities" if options.loss == "cross-entropy" else "logits"
    if options.loss != "mse" and served != needed:
        raise ValueError(
            f"--loss {options.loss} needs a deployed model that answers {needed}, {options.model} answers "
            f"{served}: use another --loss, or rrl-parity train-base --answer {needed}"
        )
    if options.loss == "cross-entropy" and options.architecture == "deployed" and named not in CLASSIFIERS:
        raise ValueError(
            f"--loss cross-entropy trains networks of {', '.join(CLASSIFIERS)}, {options.model} is another "
            "one: use --loss mse, or name one of these with --architecture"
        )
    score = _score(options.score, dataset)
    task = ParityTask(deployed.module, coding, dataset.training, options.loss, options.settings(), score)
    outputs = task.validation_outputs.shape[-1]
    own = _own_architecture(options, dataset, outputs)
    if own is None:
        net = network(load(options.model, model_options).module)
        if options.start == "random":
            initialise(net, options.seed)
    else:
        named, model_options = own
        model = load_model(named, model_options | {"seed": str(options.seed)})
        if (found := outputs_for(model, dataset)) != outputs:
            raise ValueError(
                f"the parity model answers {found} numbers, the deployed model {outputs}: leave classes out "
                "of --architecture-option"
            )
        net = network(model.module)
    if options.loss == "mse" and named not in CLASSIFIERS and _are_probabilities(task):
        raise ValueError(
            f"{options.model} answers probabilities: a network that ends in a softmax cannot learn their "
            "sum; have its factory answer logits"
        )
    task.identity += f" from {options.start} weights as {options.architecture}"
    trained = _trained(net, task, options)
    if options.loss == "cross-entropy":
        model_options |= {"answer": "probabilities", "times": str(coding.k)}
    elif named in CLASSIFIERS:
        model_options |= {"answer": "logits"}
    parity = ParityMetadata(coding.k, coding.row, coding.r, coding.encoder, of)
    save_weights(options.out, trained.net, named, model_options, parity)
    _checkpoint(options).unlink(missing_ok=True)
    shown = _shown(score, trained.score)
    _say(f"{options.out}: validation {_called(score)} of reconstructions {shown}", trained)


def _for_images(dataset: Dataset, outputs: int) -> dict[str, str]:
    """The options of a classifier of the catalogue that takes such images."""
    _, channels, size, _ = dataset.training.x.shape
    return {"classes": str(outputs), "channels": str(channels), "size": str(size)}


def _own_architecture(
    options: ParityTrainOptions, dataset: Dataset, outputs: int
) -> tuple[str, dict[str, str]] | None:
    """What a parity model is an instance of, and its options; None if of what the deployed model is."""
    if options.architecture == "deployed":
        if options.architecture_option:
            raise ValueError("--architecture-option is for another --architecture than the deployed model's")
        return None
    if not are_images(dataset.training.x):
        raise ValueError(
            f"--architecture {options.architecture} takes images (N, channels, size, size), those of "
            f"{dataset.name} are {dataset.training.x.shape}"
        )
    given = options_of(options.architecture_option, "--architecture-option")
    return options.architecture, _for_images(dataset, outputs) | given


def _score(name: str | None, dataset: Dataset) -> Score:
    return score_for(dataset.training.y, name or dataset.score)


def _called(score: Score) -> str:
    return "accuracy" if score.name == "top-1" else score.name


def _shown(score: Score, value: float) -> str:
    return f"{value:.1%}" if score.takes_classes else f"{value:.3f}"


def _are_probabilities(task: ParityTask) -> bool:
    outputs = task.validation_outputs
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(axis=-1), 1.0, atol=1e-3))


def _checkpoint(options: TrainingFlags) -> Path:
    return options.out.with_name(f"{options.out.name}.checkpoint")


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
                bar, completed=done, total=steps, score=f"{score:.3f}" if math.isfinite(score) else "not yet"
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
    named, model_options = deployed_architecture(options.model, options.model_option)
    deployed = load(options.model, model_options)
    code = {"architecture": named}
    of = identity(options.model, model_options)
    codings = [_coding_of(path, options.model, of) for path in options.parity]
    parities = [
        (coding, load_model(str(path), code)) for coding, path in zip(codings, options.parity, strict=True)
    ]
    score = _score(options.score, dataset)
    for coding, _ in parities:
        check_answers(score, dataset.test.y, check_fit(deployed, dataset, coding))
    found = evaluate(
        deployed.module,
        [(coding, model.module) for coding, model in parities],
        dataset.test.x,
        dataset.test.y,
        seed=options.seed,
        score=score,
    )
    Console().print(_table(found, dataset, parities[0][0], score))


def _coding_of(path: Path, deployed: str, of: str) -> Coding:
    metadata = read_parity_metadata(path)
    if metadata is None:
        raise ValueError(f"{path} is no parity model: its header has no 'parity'")
    if metadata.of != of:
        raise ValueError(f"{path} was trained for another deployed model than {deployed}")
    return Coding(metadata.k, metadata.row, metadata.r, metadata.encoder)


def _table(found: Evaluation, dataset: Dataset, coding: Coding, score: Score) -> Table:
    def shown(value: float) -> str:
        return f"{value:.2%}" if score.takes_classes else f"{value:.3f}"

    labels = "the labels" if dataset.test.y is not None else "the deployed model's answers"
    table = Table(f"{_called(score)} by {labels}", *(f"{lost} lost of {coding.k}" for lost in found.degraded))
    table.add_row("A_a: available", *(shown(found.available) for _ in found.degraded))
    table.add_row("A_d: reconstructed", *(shown(value) for value in found.degraded.values()))
    for f in UNAVAILABLE_SHARES:
        table.add_row(
            f"A_o: {f:.0%} unavailable", *(shown(found.overall(f, lost)) for lost in found.degraded)
        )
    table.add_row("floor: a default answer", *(shown(found.default) for _ in found.degraded))
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
