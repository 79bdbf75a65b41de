"""The neural latency estimator of RRL (section 5.1), and how it trains beside a live server.

| symbol | here | meaning |
|---|---|---|
| x | features | (1 + knobs,): the load's feature, then the knobs' indices scaled to [0, 1] |
| r | cost | an interval's cost, in milliseconds for the latency objectives |
| g(x) | `_forward` | 256 ReLU, 64 ReLU, one linear output: ln(r / r_first) or r itself |
| r̂_g(x) | `LatencyEstimator.estimate` | the cost that the last finished network expects |

Training works on its own copy. It publishes the finished network as NumPy arrays by one assignment. So
`estimate` neither waits for training nor sees a half-trained network.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from threading import Event
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from rrl.region.ftrl import FTRL
from rrl.seeding import Seed, whole_seed

MAX_SAMPLES = 50_000  # the newest, which are trained on; some 6 MB
LOAD_FACTOR = 4.0
"""Loads between 1/4 and 4 times the first one seen have a feature in [0, 1]."""


@dataclass(frozen=True)
class EstimatorSettings:
    """How the network is trained. The sources are RRL's section 5 and the authors' script."""

    hidden: tuple[int, ...] = (256, 64)  # ReLU units (section 5.1, found by NEAT)
    target: Literal["log", "raw"] = "log"  # ln(cost / first cost), or the cost itself (script: ms)
    huber_delta: float = 1.0  # in the target's unit (script: 100 ms)
    learning_rate: float = 0.1  # FTRL's (script: 0.7)
    initial_accumulator: float = 0.1  # FTRL's (TensorFlow's default)
    l1: float = 0.0  # FTRL's (script: 0)
    l2: float = 0.0  # FTRL's (script: 0)
    start_from_weights: bool = True  # FTRL's z_0; False is TensorFlow's z_0 = 0
    warm_start: bool = True  # a round starts from the last network; False from new weights (script)
    minibatch: int = 64  # samples a step; 0 takes all of them
    max_steps: int = 100  # in a round: the step threshold of section 5.2 (script: 30,000)
    loss_threshold: float = 1e-4  # ends a round: the loss threshold of section 5.2, in units of the loss
    check_every_steps: int = 100  # how often the loss over all samples is compared (script)
    patience_checks: int = 0  # checks without improvement that end a round; 0: no number does (script: 10)

    def __post_init__(self) -> None:
        if self.target not in ("log", "raw"):
            raise ValueError(f"the estimator's target must be 'log' or 'raw', got {self.target!r}")
        if self.max_steps < 1 or self.check_every_steps < 1:
            raise ValueError("max_steps and check_every_steps must be at least 1")
        if self.minibatch < 0 or self.patience_checks < 0:
            raise ValueError("minibatch and patience_checks must not be negative")
        if not self.huber_delta > 0:
            raise ValueError(f"huber_delta must be positive, got {self.huber_delta}")


class TrainingRound(NamedTuple):
    """What one round of training did."""

    samples: int
    steps: int
    loss: float  # of the last step


class LatencyEstimator:
    """Predicts the cost of a configuration at a load from the samples so far, the newest `MAX_SAMPLES`."""

    def __init__(self, knobs: int, settings: EstimatorSettings, seed: Seed) -> None:
        seed = whole_seed(seed)
        self.settings = settings
        self._widths = (1 + knobs, *settings.hidden, 1)
        self._rng = np.random.default_rng(seed)  # only training draws from it
        self._torch_rng = torch.Generator().manual_seed(seed)
        self._samples: list[tuple[np.ndarray, float]] = []  # features and target, oldest first
        self._first_rate_per_s = math.nan
        self._first_cost = math.nan
        self._weights = self._new_weights()  # all layers in one vector, so that one optimiser step does
        self._finished: list[np.ndarray] = []  # the last finished network

    @property
    def trained(self) -> bool:
        return bool(self._finished)

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, rate_per_s: float, knob_features: np.ndarray, cost: float) -> None:
        """Adds a sample: the (knobs,) features of a configuration and its positive cost at a load."""
        if not self._samples:
            self._first_rate_per_s, self._first_cost = rate_per_s, cost
        target = math.log(cost / self._first_cost) if self.settings.target == "log" else cost
        self._samples.append((self._features(rate_per_s, knob_features[None])[0], target))
        del self._samples[:-MAX_SAMPLES]

    def estimate(self, rate_per_s: float, knob_features: np.ndarray) -> np.ndarray:
        """(n,) costs of the configurations with these (n, knobs) features. The network must be trained."""
        output = _forward_numpy(self._features(rate_per_s, knob_features), self._finished)
        if self.settings.target == "raw":
            return output
        result: np.ndarray = self._first_cost * np.exp(np.clip(output, -20.0, 20.0))
        return result

    def train(self, stop: Callable[[], bool] = lambda: False) -> TrainingRound:
        """Trains one round on the samples so far. `stop` is asked at every step, and ends it unpublished."""
        samples = list(self._samples)
        x = torch.from_numpy(np.stack([features for features, _ in samples]).astype(np.float32))
        y = torch.tensor([target for _, target in samples], dtype=torch.float32)
        settings = self.settings
        if not settings.warm_start:
            self._weights = self._new_weights()
        weights, optimizer = self._weights, self._new_optimizer()
        best, checks_without_improvement, loss_value, step = math.inf, 0, math.nan, 0
        for step in range(1, settings.max_steps + 1):
            if stop():
                return TrainingRound(len(samples), step - 1, loss_value)
            batch = self._minibatch(len(samples))
            loss = self._loss(weights, x[batch], y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_value = loss.item()
            if loss_value < settings.loss_threshold:
                break
            if settings.patience_checks and step % settings.check_every_steps == 0:
                with torch.no_grad():
                    total = self._loss(weights, x, y).item()
                checks_without_improvement = 0 if total < best else checks_without_improvement + 1
                best = min(best, total)
                if checks_without_improvement >= settings.patience_checks:
                    break
        self._finished = [part.numpy().copy() for part in self._parts(weights.detach())]
        return TrainingRound(len(samples), step, loss_value)

    def _features(self, rate_per_s: float, knob_features: np.ndarray) -> np.ndarray:
        """(n, 1 + knobs): the logarithm of the load around the first load seen, then the knobs."""
        rate = max(rate_per_s, 0.01) / max(self._first_rate_per_s, 0.01)
        load = np.clip(0.5 + 0.5 * math.log(rate) / math.log(LOAD_FACTOR), -1.0, 2.0)
        return np.column_stack([np.full(len(knob_features), load), knob_features])

    def _minibatch(self, samples: int) -> torch.Tensor | slice:
        """The samples that a step takes: all, or a random choice that always holds the newest."""
        if not 0 < self.settings.minibatch < samples:
            return slice(None)
        chosen = self._rng.integers(samples, size=self.settings.minibatch)
        chosen[0] = samples - 1
        return torch.from_numpy(chosen)

    def _loss(self, weights: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output = _forward(x, self._parts(weights))
        return torch.nn.functional.huber_loss(output, y, delta=self.settings.huber_delta)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of a round. With one for all rounds, the steps of a long run would dwindle."""
        return FTRL(
            [self._weights],
            lr=self.settings.learning_rate,
            initial_accumulator_value=self.settings.initial_accumulator,
            l1=self.settings.l1,
            l2=self.settings.l2,
            start_from_weights=self.settings.start_from_weights,
        )

    def _new_weights(self) -> torch.Tensor:
        """He's initial weights and zero biases, as one vector."""
        parts = []
        for fan_in, fan_out in pairwise(self._widths):
            # The output starts near 0, so that estimates start near a constant, not on a random surface.
            scale = math.sqrt(2.0 / fan_in) * (0.1 if fan_out == 1 else 1.0)
            parts += [torch.randn(fan_in * fan_out, generator=self._torch_rng) * scale, torch.zeros(fan_out)]
        return torch.cat(parts).requires_grad_()

    def _parts(self, weights: torch.Tensor) -> list[torch.Tensor]:
        """The vector as w_1 (in, out), b_1 (out,), w_2, b_2, ..."""
        shapes = [shape for pair in pairwise(self._widths) for shape in (pair, pair[1:])]
        vectors = weights.split([math.prod(shape) for shape in shapes])
        return [vector.view(shape) for vector, shape in zip(vectors, shapes, strict=True)]


def _forward(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """(n, features) -> (n,): g(x)."""
    for i in range(0, len(weights) - 2, 2):
        x = torch.addmm(weights[i + 1], x, weights[i]).relu()
    return torch.addmm(weights[-1], x, weights[-2]).squeeze(1)


def _forward_numpy(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """g(x) of a finished network. NumPy spares a decision torch's thread pool."""
    x = x.astype(np.float32)
    for i in range(0, len(weights) - 2, 2):
        x = np.maximum(x @ weights[i] + weights[i + 1], 0.0)
    return (x @ weights[-2] + weights[-1])[:, 0].astype(float)


class Training(Protocol):
    """When an estimator trains."""

    def request(self) -> None:
        """Trains on new samples, now or soon. Raises what an earlier round raised."""
        ...

    def wait(self) -> None:
        """Waits until everything requested so far is trained."""
        ...

    def close(self) -> None: ...


class InlineTraining:
    """Trains at once. It repeats exactly, for simulation and tests."""

    def __init__(self, train: Callable[[], Any]) -> None:
        self._train = train

    def request(self) -> None:
        self._train()

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


def _yield_to_the_server() -> None:
    """Gives this thread alone a low priority (Linux), as training may wait and requests may not."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class BackgroundTraining:
    """Trains in one worker thread. While a round runs, any number of requests add up to one more.

    `train` is called with a function that says whether to stop.
    """

    def __init__(self, train: Callable[[Callable[[], bool]], Any]) -> None:
        self._train = train
        self._closing = Event()
        self._executor = ThreadPoolExecutor(1, "rrl-training", initializer=_yield_to_the_server)
        self._rounds: list[Future[Any]] = []  # the one running and the one waiting, if any

    def request(self) -> None:
        self._collect()
        if all(training.running() or training.done() for training in self._rounds):
            self._rounds.append(self._executor.submit(self._train, self._closing.is_set))

    def wait(self) -> None:
        """Waits until everything requested so far is trained."""
        for training in self._rounds:
            training.exception()
        self._collect()

    def close(self) -> None:
        """Ends a running round at its next step, and raises what the last one raised."""
        self._closing.set()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._rounds = [training for training in self._rounds if not training.cancelled()]
        self._collect()

    def _collect(self) -> None:
        """Drops the finished rounds, and raises an exception of theirs once."""
        done = [training for training in self._rounds if training.done()]
        self._rounds = [training for training in self._rounds if training not in done]
        for training in done:
            training.result()
