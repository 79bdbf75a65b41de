"""What networks are trained for: deployed models by labels, parity models by what those answer.

| symbol | meaning | shape |
|---|---|---|
| X_i | sample i of a group | (batch, *item) |
| F | the deployed model, fixed | (batch, outputs) |
| c_i | weight of output i in the parity's output, a row of `coding.coefficients` | |
| P | the parity query, encode(X_1 .. X_k) | (batch, *item) |
| F_P | the parity model, of F's architecture or another | (batch, outputs) |
| R_j | reconstruction (F_P(P) - sum over i != j of c_i F(X_i)) / c_j | (batch, outputs) |

Losses of a parity model:

- `mse`: (F_P(P) - sum c_i F(X_i))², section 4.4. It suits classifiers and regressors alike.
- `cross-entropy`: between softmax F_P(P) and the normalised sum of the one-hot labels, section 5.2.3. The
  model then serves k softmax, so F must answer probabilities.
- `decoded`: the cross-entropy of the answers that the decoder will give, R_j against F(X_j), mean over j. It
  spends the network on what decoding leaves open: that F_P(P) is far from the sum costs nothing as long as
  every reconstruction is right. F must answer logits.

Each step draws one batch of samples and groups it with itself in k - 1 random orders. So one pass through the
deployed model gives as many parities as samples. Where images are not augmented, the deployed model answers
each of them once, before the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from blake3 import blake3
from torch import Tensor, nn

from serving_adapter.models.classifiers import Probabilities
from serving_adapter.parity.datasets import Images
from serving_adapter.parity.evaluation import TOP_1, Coding, answers, degraded_accuracies, rounds_for
from serving_adapter.parity.scoring import Score
from serving_adapter.parity.training import TrainingSettings, TrainingTask

VALIDATION_SHARE = 0.1  # of the training images
VALIDATION_RECONSTRUCTIONS = 2_000  # few images are grouped anew until there are as many
PARITY_LOSSES = ("mse", "cross-entropy", "decoded")


def split(images: Images) -> tuple[Images, Images]:
    """Training and validation images. The split is fixed, so no parity model sees what validated F."""
    order = np.random.default_rng(0).permutation(len(images.x))
    count = max(1, round(VALIDATION_SHARE * len(order)))
    chosen = order[count:], order[:count]
    training, validation = (
        Images(images.x[part], None if images.y is None else images.y[part]) for part in chosen
    )
    return training, validation


class DeployedTask:
    """Training by labels, and validation by them."""

    def __init__(self, images: Images, settings: TrainingSettings, score: Score) -> None:
        if images.y is None:
            raise ValueError("a deployed model is trained with labelled images: the data has no 'y'")
        self.images, self.validation = split(images)
        self.labels = torch.from_numpy(self.images.y).to(settings.device)
        self.settings, self._score = settings, score
        self.identity = f"{type(self).__name__} by {score.name}"

    def score(self, net: nn.Module) -> float:
        assert self.validation.y is not None
        return self._score.mean(answers(net, self.validation.x, self.settings.device), self.validation.y)


class ClassificationTask(DeployedTask):
    """Cross-entropy against the classes."""

    def __init__(self, images: Images, settings: TrainingSettings, score: Score = TOP_1) -> None:
        super().__init__(images, settings, score)

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor:
        outputs = net(x.to(self.settings.device)).float()
        labels = self.labels[chosen.to(self.settings.device)]
        return F.cross_entropy(outputs, labels, label_smoothing=self.settings.label_smoothing)


class RegressionTask(DeployedTask):
    """Mean squared error against the numbers."""

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor:
        outputs = net(x.to(self.settings.device)).float()
        return F.mse_loss(outputs, self.labels[chosen.to(self.settings.device)])


def deployed_task(images: Images, settings: TrainingSettings, score: Score) -> TrainingTask:
    """What a model is trained for that is to be good by this score."""
    if score.takes_classes:
        return ClassificationTask(images, settings, score)
    return RegressionTask(images, settings, score)


class ParityTask:
    """One of the losses of a parity model, for a deployed model that stays as it is."""

    def __init__(
        self,
        deployed: nn.Module,
        coding: Coding,
        images: Images,
        loss: str,
        settings: TrainingSettings,
        score: Score = TOP_1,
    ) -> None:
        if loss not in PARITY_LOSSES:
            raise ValueError(f"unknown loss {loss!r}; known: {', '.join(PARITY_LOSSES)}")
        if loss == "cross-entropy" and coding.row:
            raise ValueError(
                f"the loss cross-entropy is for row 0, whose outputs count alike, not for row {coding.row}: "
                "use mse or decoded"
            )
        if loss != "mse" and not score.takes_classes:
            raise ValueError(f"the loss {loss} is for classifiers; train this parity model with mse")
        self.deployed = deployed.to(settings.device)
        self.coding, self.loss_name, self.settings, self._score = coding, loss, settings, score
        self.images, self.validation = split(images)
        if len(self.validation.x) < coding.k:
            raise ValueError(f"{len(images.x)} images are too few to train and validate with k={coding.k}")
        self.weights = [float(weight) for weight in coding.weights]
        self.validation_outputs = answers(deployed, self.validation.x, settings.device)
        deployed_digest = blake3(self.validation_outputs.tobytes()).hexdigest()
        self.identity = f"{coding} {loss} by {score.name} of {deployed_digest}"
        labels = self.validation.y
        self.validation_labels = score.labels_of(self.validation_outputs) if labels is None else labels
        outputs = self.validation_outputs.shape[-1]
        check_answers(score, images.y, outputs)
        self.labels: Tensor | None = None
        if loss == "cross-entropy":
            labels = self.images.y
            if labels is None:
                labels = answers(deployed, self.images.x, settings.device).argmax(axis=-1)
            self.labels = F.one_hot(torch.from_numpy(labels), outputs).float().to(settings.device)

    def loss(self, net: nn.Module, x: Tensor, chosen: Tensor, draw: torch.Generator) -> Tensor:
        device, k = self.settings.device, self.coding.k
        orders = [torch.arange(len(x)), *(torch.randperm(len(x), generator=draw) for _ in range(k - 1))]
        parities = torch.from_numpy(self.coding.encode([x[order].numpy() for order in orders]))
        outputs = net(parities.to(device)).float()
        if self.labels is not None:
            target = torch.stack([self.labels[chosen[order].to(device)] for order in orders]).mean(dim=0)
            return F.cross_entropy(outputs, target)
        deployed = self._deployed_outputs(x, chosen)
        terms = [
            weight * deployed[order.to(device)] for weight, order in zip(self.weights, orders, strict=True)
        ]
        if self.loss_name == "mse":
            return F.mse_loss(outputs, torch.stack(terms).sum(dim=0))
        return self._decoded(outputs, terms)

    def _deployed_outputs(self, x: Tensor, chosen: Tensor) -> Tensor:
        """F of these images; of ones that are not augmented it is known."""
        device = self.settings.device
        if not self.settings.augments:
            return self._outputs[chosen.to(device)]
        with torch.no_grad():
            return self.deployed(x.to(device)).float()

    @cached_property
    def _outputs(self) -> Tensor:
        """F of all training images, computed in the first step so that it counts as training."""
        device = self.settings.device
        return torch.from_numpy(answers(self.deployed, self.images.x, device)).to(device)

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
            score=self._score,
        )
        return found[1]


def check_answers(score: Score, labels: np.ndarray | None, outputs: int) -> None:
    """ValueError unless a model that answers so many numbers can be judged by this score and these labels."""
    if score.name == "iou" and outputs != 4:
        raise ValueError(
            f"the score iou is for models that answer boxes of 4 numbers, this one answers {outputs}"
        )
    if labels is None:
        return
    if labels.ndim == 1 and labels.max() >= outputs:
        raise ValueError(f"the labels go up to {labels.max()}, the deployed model answers {outputs} classes")
    if labels.ndim == 2 and labels.shape[1] != outputs:
        raise ValueError(
            f"the labels have {labels.shape[1]} numbers each, the deployed model answers {outputs}"
        )


def serving(net: nn.Module, loss: str, k: int) -> nn.Module:
    """What a parity model serves of its network's outputs."""
    return Probabilities(net, float(k)) if loss == "cross-entropy" else net
