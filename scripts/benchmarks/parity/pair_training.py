"""Trains the models of a pair of `parity-accuracy`, each once, and judges them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from scripts.benchmarks.parity.accuracy_recipes import Network, Recipe
from serving_adapter.models.classifiers import network
from serving_adapter.models.loading import load_model
from serving_adapter.models.model import Model
from serving_adapter.models.parity_metadata import ParityMetadata, read_architecture, weights_digest
from serving_adapter.models.weights_files import save_weights
from serving_adapter.parity.datasets import Dataset
from serving_adapter.parity.evaluation import Coding, evaluate
from serving_adapter.parity.scoring import Score, score_for
from serving_adapter.parity.tasks import ParityTask, deployed_task
from serving_adapter.parity.training import Trained, TrainingSettings, TrainingTask, TrainingWatch, train

CALLS = 100  # of each model, to time it
UNAVAILABLE_SHARES = (0.01, 0.02, 0.05, 0.1)  # f of Eq. (1)


@dataclass(frozen=True)
class AccuracyRow:
    """What one pair, code and loss have; the accuracies are means of the score."""

    pair: str
    code: str
    k: int
    loss: str
    score: str
    available: float
    degraded: float
    overall: dict[str, float]
    """A_o by f."""
    default: float
    deployed_s: float
    parity_s: float
    deployed_ms: float
    """Of a query alone."""
    parity_ms: float

    @property
    def points(self) -> float:
        return 100 * (self.available - self.degraded)

    @property
    def time_ratio(self) -> float:
        return self.parity_s / self.deployed_s


@dataclass(frozen=True)
class PairTraining:
    """A pair's data and recipe, and the folder of what is trained."""

    recipe: Recipe
    dataset: Dataset
    folder: Path

    def row(self, code: str, k: int, loss: str) -> AccuracyRow:
        answer = "probabilities" if loss == "cross-entropy" else "logits"
        deployed, deployed_s = self._deployed(answer)
        codings = [Coding(k, encoder="concat" if code == "concat" else "sum")]
        if code == "r2":
            codings = [Coding(k, row, 2) for row in range(2)]
        trained = [self._parity(coding, loss, answer) for coding in codings]
        parities = [(coding, model.module) for coding, (model, _) in zip(codings, trained, strict=True)]
        test, lost = self.dataset.test, len(codings)
        found = evaluate(deployed.module, parities, test.x, test.y, score=self.score)
        return AccuracyRow(
            pair=self.recipe.pair,
            code=code,
            k=k,
            loss=loss,
            score=self.score.name,
            available=found.available,
            degraded=found.degraded[lost],
            overall={f"{f:g}": found.overall(f, lost) for f in UNAVAILABLE_SHARES},
            default=found.default,
            deployed_s=deployed_s,
            parity_s=max(seconds for _, seconds in trained),
            deployed_ms=_query_ms(deployed.module, test.x.shape[1:]),
            parity_ms=_query_ms(parities[0][1], test.x.shape[1:]),
        )

    @property
    def score(self) -> Score:
        return score_for(self.dataset.training.y, self.dataset.score)

    def _deployed(self, answer: str) -> tuple[Model, float]:
        """A model that answers probabilities is the one that answers logits, with a softmax."""
        recipe, path = self.recipe, self._deployed_path(answer)

        def trained() -> tuple[nn.Module, float]:
            if answer != "logits":
                model, seconds = self._deployed("logits")
                return network(model.module), seconds
            task = deployed_task(self.dataset.training, recipe.deployed, self.score)
            net = self._random(recipe.network, recipe.deployed.seed)
            return self._trained(net, task, recipe.deployed, path)

        model_options = self._model_options(recipe.network) | {"answer": answer}
        return self._kept(path, trained, recipe.network.architecture, model_options)

    def _parity(self, coding: Coding, loss: str, answer: str) -> tuple[Model, float]:
        recipe, own = self.recipe, self.recipe.parity_network
        deployed, deployed_path = self._deployed(answer)[0], self._deployed_path(answer)
        code = f"{coding.encoder}-k{coding.k}-r{coding.r}-row{coding.row}-{loss}"
        of = "" if own is None else f"-{own.name}"
        path = self._path(recipe, f"parity{of}-epochs{recipe.parity.epochs}-{code}")

        def trained() -> tuple[nn.Module, float]:
            if own is None:
                net = network(load_model(str(deployed_path), {}).module)
            else:
                net = self._random(own, recipe.parity.seed)
            task = ParityTask(deployed.module, coding, self.dataset.training, loss, recipe.parity, self.score)
            return self._trained(net, task, recipe.parity, path)

        served = {"answer": "logits"}
        if loss == "cross-entropy":
            served = {"answer": "probabilities", "times": str(coding.k)}
        metadata = ParityMetadata(
            coding.k, coding.row, coding.r, coding.encoder, weights_digest(deployed_path)
        )
        options = read_architecture(deployed_path).options if own is None else self._model_options(own)
        architecture = (own or recipe.network).architecture
        return self._kept(path, trained, architecture, options | served, metadata)

    def _trained(
        self, net: nn.Module, task: TrainingTask, settings: TrainingSettings, path: Path
    ) -> tuple[nn.Module, float]:
        """Trains on from the checkpoint beside the file to be, if there is one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        done = train(net, task, settings, TrainingWatch(checkpoint=_checkpoint(path)))
        return done.net, _seconds(done)

    def _kept(
        self,
        path: Path,
        trained: Callable[[], tuple[nn.Module, float]],
        architecture: str,
        model_options: dict[str, str],
        parity: ParityMetadata | None = None,
    ) -> tuple[Model, float]:
        """The model and its training time, of the folder if it is there already."""
        time_path = path.with_suffix(".json")
        if not (path.exists() and time_path.exists()):
            net, seconds = trained()
            save_weights(path, net, architecture, model_options, parity)
            time_path.write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
            _checkpoint(path).unlink(missing_ok=True)
        return load_model(str(path), {}), json.loads(time_path.read_text(encoding="utf-8"))["seconds"]

    def _random(self, chosen: Network, seed: int) -> nn.Module:
        options = self._model_options(chosen) | {"seed": str(seed)}
        return network(load_model(chosen.architecture, options).module)

    def _model_options(self, chosen: Network) -> dict[str, str]:
        _, channels, size, _ = self.dataset.training.x.shape
        of_data = {"classes": str(self.dataset.outputs), "channels": str(channels), "size": str(size)}
        return of_data | dict(chosen.options)

    def _deployed_path(self, answer: str) -> Path:
        return self._path(replace(self.recipe, parity_network=None), answer)

    def _path(self, recipe: Recipe, what: str) -> Path:
        """Trainings of other lengths or seeds have other files."""
        name = (
            f"{recipe.data}-{recipe.network.name}-epochs{recipe.deployed.epochs}-seed{recipe.deployed.seed}"
        )
        return self.folder / f"{name}-{what}.safetensors"


def _checkpoint(path: Path) -> Path:
    return path.with_suffix(".checkpoint")


def _seconds(trained: Trained) -> float:
    """Processor seconds, since others may use it too; the clock's where a GPU does the work."""
    return trained.seconds if torch.cuda.is_available() else trained.processor_seconds


def _query_ms(module: nn.Module, shape: tuple[int, ...]) -> float:
    """The median time that a module takes for one query."""
    x = torch.zeros((1, *shape), device=next(module.parameters()).device)
    times_ms = []
    with torch.inference_mode():
        for _ in range(CALLS):
            began_s = perf_counter()
            module(x)
            times_ms.append(1e3 * (perf_counter() - began_s))
    return median(times_ms)
