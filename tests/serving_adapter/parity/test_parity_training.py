"""Training: what it reaches on small problems, that it repeats itself, and that it can be interrupted."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from serving_adapter.models.classifiers import ARCHITECTURES, initialise
from serving_adapter.parity.datasets import Images
from serving_adapter.parity.evaluation import Coding, evaluate
from serving_adapter.parity.scoring import SCORES
from serving_adapter.parity.tasks import (
    ClassificationTask,
    ParityTask,
    RegressionTask,
    deployed_task,
    serving,
    split,
)
from serving_adapter.parity.training import (
    Interrupted,
    TrainingSettings,
    TrainingWatch,
    augmented,
    train,
)

CLASSES = 3
QUICK = TrainingSettings(epochs=6, batch_size=32)


def blobs(count: int, seed: int) -> Images:
    """Images of one of three patterns each, and noise."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(7).standard_normal((CLASSES, 1, 4, 4))
    y = rng.integers(CLASSES, size=count)
    x = patterns[y] + 0.1 * rng.standard_normal((count, 1, 4, 4))
    return Images(x.astype(np.float32), y)


def mlp(seed: int = 0) -> nn.Module:
    net = ARCHITECTURES["mlp"](CLASSES, 1, 4)
    initialise(net, seed)
    return net


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images() -> Images:
    return blobs(400, seed=1)


@pytest.fixture(scope="module")
def deployed(images) -> nn.Module:
    return train(mlp(), ClassificationTask(images, QUICK), QUICK).net


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_a_classifier_learns_what_is_easy(deployed):
    test = blobs(200, seed=2)
    found = evaluate(deployed, [(Coding(2), deployed)], test.x, test.y)
    assert found.available > 0.95


@pytest.mark.parametrize(("k", "row", "r"), [(2, 0, 1), (3, 0, 1), (2, 1, 2)])
@pytest.mark.parametrize("loss", ["mse", "decoded"])
def test_a_parity_model_learns_to_reconstruct_its_row(deployed, images, k, row, r, loss):
    coding = Coding(k, row, r)
    settings = TrainingSettings(epochs=40, batch_size=32)
    trained = train(copy.deepcopy(deployed), ParityTask(deployed, coding, images, loss, settings), settings)
    assert trained.score > 0.9


def test_two_losses_are_reconstructed_from_two_parities(deployed, images):
    settings = TrainingSettings(epochs=40, batch_size=32)
    parities = []
    for row in range(2):
        coding = Coding(2, row, 2)
        task = ParityTask(deployed, coding, images, "mse", settings)
        parities.append((coding, train(copy.deepcopy(deployed), task, settings).net))
    test = blobs(200, seed=2)
    found = evaluate(deployed, parities, test.x, test.y)
    assert min(found.degraded.values()) > 0.85


def test_concatenated_images_are_learned_by_cross_entropy_for_a_model_of_probabilities(deployed, images):
    probabilities = serving(deployed, "cross-entropy", 1)
    coding = Coding(2, encoder="concat")
    settings = TrainingSettings(epochs=40, batch_size=32)
    net = train(mlp(), ParityTask(probabilities, coding, images, "cross-entropy", settings), settings).net
    served = serving(net, "cross-entropy", 2)
    test = blobs(200, seed=2)
    assert evaluate(probabilities, [(coding, served)], test.x, test.y).degraded[1] > 0.7


def test_recorded_traffic_needs_no_labels(deployed, images):
    for loss in ("mse", "decoded", "cross-entropy"):
        served = serving(deployed, loss, 1)
        task = ParityTask(served, Coding(2), Images(images.x, None), loss, QUICK)
        assert train(mlp(), task, QUICK).score > 0.5


def test_the_decoded_loss_is_least_for_a_perfect_parity_model(deployed, images):
    class Perfect(nn.Module):
        """Answers the sum for the groups of the loss, which it draws as the loss does."""

        def forward(self, x):
            return outputs[first] + outputs[second]

    task = ParityTask(deployed, Coding(2), Images(images.x, images.y), "decoded", QUICK)
    chosen = torch.arange(32)
    x = torch.from_numpy(task.images.x[:32])
    with torch.no_grad():
        outputs = deployed(x)
    draw = torch.Generator().manual_seed(3)
    first, second = chosen, torch.randperm(32, generator=draw)
    reached = task.loss(Perfect(), x, chosen, torch.Generator().manual_seed(3))
    entropy = torch.distributions.Categorical(logits=outputs).entropy().mean()
    assert reached.item() == pytest.approx(entropy.item(), rel=1e-4)
    assert task.loss(mlp(), x, chosen, torch.Generator().manual_seed(3)) > reached


def test_the_seed_decides_everything(images):
    first, again = (train(mlp(), ClassificationTask(images, QUICK), QUICK) for _ in range(2))
    assert same(first.net, again.net)
    other = TrainingSettings(epochs=6, batch_size=32, seed=1)
    assert not same(first.net, train(mlp(), ClassificationTask(images, other), other).net)


@pytest.mark.parametrize("steps", [1, 11, 40])
@pytest.mark.parametrize("dropout", [False, True])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(deployed, images, tmp_path, steps, dropout):
    def net(seed: int = 0) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.2), mlp(seed)) if dropout else mlp(seed)

    task = ParityTask(deployed, Coding(2), images, "mse", QUICK)
    first, drawn = net(), torch.get_rng_state()
    expected = train(first, task, QUICK)
    assert drawn.equal(torch.get_rng_state())  # what others draw stays as it is
    torch.rand(1)
    checkpoint = tmp_path / "p.checkpoint"
    done = 0

    def on_step(count: int, total: int, score: float) -> None:
        nonlocal done
        done = count

    with pytest.raises(Interrupted):
        train(net(), task, QUICK, TrainingWatch(on_step, lambda: done == steps, checkpoint))
    assert checkpoint.exists()
    resumed = train(net(seed=9), task, QUICK, TrainingWatch(checkpoint=checkpoint))
    assert same(resumed.net, expected.net)
    assert resumed.score == expected.score
    assert checkpoint.exists()  # until the weights are written


def test_a_resumed_training_keeps_what_the_optimiser_knows_of_each_weight(images, tmp_path):
    """In bfloat16 a filter's weights lie in another order in memory than in a file."""
    settings = TrainingSettings(epochs=6, batch_size=32, bf16=True)

    def net() -> nn.Module:
        made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, CLASSES, 2), nn.Flatten())
        initialise(made, 0)
        return made

    task = ClassificationTask(images, settings)
    expected = train(net(), task, settings)
    answers = iter([False] * 30 + [True])
    checkpoint = tmp_path / "c.checkpoint"
    with pytest.raises(Interrupted):
        train(net(), task, settings, TrainingWatch(stopping=lambda: next(answers), checkpoint=checkpoint))
    assert same(train(net(), task, settings, TrainingWatch(checkpoint=checkpoint)).net, expected.net)


def test_a_checkpoint_of_something_else_is_refused(images, tmp_path):
    checkpoint = tmp_path / "c.checkpoint"
    with pytest.raises(Interrupted):
        train(
            mlp(),
            ClassificationTask(images, QUICK),
            QUICK,
            TrainingWatch(stopping=lambda: True, checkpoint=checkpoint),
        )
    other = TrainingSettings(epochs=7, batch_size=32)
    with pytest.raises(ValueError, match=r"cannot go on from the checkpoint .* with other options or data"):
        train(mlp(), ClassificationTask(images, other), other, TrainingWatch(checkpoint=checkpoint))
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cannot go on from the checkpoint .*, or delete it to begin anew"):
        train(mlp(), ClassificationTask(images, QUICK), QUICK, TrainingWatch(checkpoint=checkpoint))


def test_the_best_validation_is_kept_not_the_last(images):
    class Scored(ClassificationTask):
        scores = [0.2, 0.9, 0.1, 0.3, 0.3, 0.3]  # noqa: RUF012
        best: dict | None = None

        def score(self, net: nn.Module) -> float:
            score = self.scores.pop(0)
            if score == 0.9:
                self.best = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            return score

    task = Scored(images, QUICK)
    trained = train(mlp(), task, QUICK)
    assert trained.score == 0.9
    assert task.best is not None
    assert all(torch.equal(task.best[name], t) for name, t in trained.net.state_dict().items())


@pytest.mark.parametrize("changed", ["x", "y"])
@pytest.mark.parametrize("part", ["training", "validation"])
@pytest.mark.parametrize("kind", ["deployed", "parity"])
def test_a_checkpoint_of_other_data_is_refused(deployed, images, tmp_path, kind, part, changed):
    checkpoint = tmp_path / "c.checkpoint"

    def begin(data: Images, watch: TrainingWatch) -> None:
        if kind == "deployed":
            train(mlp(), ClassificationTask(data, QUICK), QUICK, watch)
        else:
            train(mlp(), ParityTask(deployed, Coding(2), data, "mse", QUICK), QUICK, watch)

    with pytest.raises(Interrupted):
        begin(images, TrainingWatch(stopping=lambda: True, checkpoint=checkpoint))
    numbers = np.arange(len(images.x))
    _, of_validation = split(Images(images.x, numbers))
    assert of_validation.y is not None
    chosen = np.isin(numbers, of_validation.y, invert=part == "training")
    x, y = images.x.copy(), images.y.copy()
    if changed == "x":
        x[chosen] += 1e-6
    else:
        y[chosen] = (y[chosen] + 1) % CLASSES
    with pytest.raises(ValueError, match="with other options or data"):
        begin(Images(x, y), TrainingWatch(checkpoint=checkpoint))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_training_without_a_finite_validation_is_refused_and_leaves_no_checkpoint(images, tmp_path, kind):
    settings = TrainingSettings(epochs=3, batch_size=32, learning_rate=1e30)
    checkpoint = tmp_path / "c.checkpoint"
    if kind == "classes":
        net, task = mlp(), deployed_task(images, settings, SCORES["top-1"])
    else:
        net, task = box_net(), deployed_task(boxes(60, seed=3), settings, SCORES["r2"])
    with pytest.raises(ValueError, match=r"the training diverged: .*; lower the learning rate"):
        train(net, task, settings, TrainingWatch(checkpoint=checkpoint))
    assert not checkpoint.exists()


def test_of_a_training_that_diverges_late_the_weights_from_before_are_kept(images):
    class Diverging(ClassificationTask):
        validations = 0

        def loss(self, net, x, chosen, draw):
            return super().loss(net, x, chosen, draw) * (float("nan") if self.validations == 2 else 1.0)

        def score(self, net: nn.Module) -> float:
            self.validations += self.validations < 2
            return super().score(net)

    images = Images(images.x, np.zeros(len(images.x), np.int64))
    trained = train(mlp(), Diverging(images, QUICK), QUICK)
    assert all(tensor.isfinite().all() for tensor in trained.net.state_dict().values())


def test_validation_images_are_not_trained_with(images):
    training, validation = split(images)
    assert len(training.x) + len(validation.x) == len(images.x)
    seen = {image.tobytes() for image in training.x}
    assert not any(image.tobytes() in seen for image in validation.x)


def test_augmentation_moves_and_mirrors():
    x = torch.zeros(200, 1, 5, 5)
    x[:, 0, 2, 1] = 1.0
    draw = torch.Generator().manual_seed(0)
    moved = augmented(x, 1, False, draw)
    assert {tuple(place) for place in moved.nonzero()[:, 2:].tolist()} == {
        (row, column) for row in (1, 2, 3) for column in (0, 1, 2)
    }
    mirrored = augmented(x, 0, True, draw)
    assert set(mirrored.nonzero()[:, 3].tolist()) == {1, 3}
    assert torch.equal(augmented(x, 0, False, draw), x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 1}, "the batch size at least 2"),
        ({"learning_rate": 0.0}, "the learning rate must be above 0"),
        ({"weight_decay": -1.0}, "the weight decay not negative"),
        ({"label_smoothing": 1.0}, "label smoothing must be from 0 to below 1"),
        ({"shift_pixels": -1}, "the shift must not be negative"),
    ],
)
def test_settings_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainingSettings(**options)


def test_a_deployed_model_needs_labels(images):
    with pytest.raises(ValueError, match="the data has no 'y'"):
        ClassificationTask(Images(images.x, None), QUICK)


def test_too_few_images_are_refused(deployed, images):
    with pytest.raises(ValueError, match="12 images are too few to train and validate with k=2"):
        ParityTask(deployed, Coding(2), Images(images.x[:12], None), "mse", QUICK)


def boxes(count: int, seed: int) -> Images:
    """Images of one bright pixel each, and the box around it."""
    rng = np.random.default_rng(seed)
    corners = rng.integers(4, size=(count, 2))
    x = 0.05 * rng.standard_normal((count, 1, 4, 4)).astype(np.float32)
    x[np.arange(count), 0, corners[:, 1], corners[:, 0]] += 1.0
    return Images(x, np.concatenate([corners, corners + 1], axis=1).astype(np.float32))


def box_net(seed: int = 0) -> nn.Module:
    net = ARCHITECTURES["mlp"](4, 1, 4)
    initialise(net, seed)
    return net


def test_a_regressor_and_its_parity_model_are_trained_and_chosen_by_their_own_score() -> None:
    images, score = boxes(600, seed=1), SCORES["iou"]
    settings = TrainingSettings(epochs=60, batch_size=32)
    task = deployed_task(images, settings, score)
    assert isinstance(task, RegressionTask)
    trained = train(box_net(), task, settings)
    assert trained.score > 0.7
    parity_task = ParityTask(trained.net, Coding(2), images, "mse", settings, score)
    parity = train(copy.deepcopy(trained.net), parity_task, settings)
    test = boxes(300, seed=2)
    found = evaluate(trained.net, [(Coding(2), parity.net)], test.x, test.y, score=score)
    assert found.available > 0.7
    assert found.available >= found.degraded[1] > 2 * found.default


def test_losses_of_classifiers_are_refused_for_regressors(images) -> None:
    for loss in ("decoded", "cross-entropy"):
        with pytest.raises(ValueError, match=f"the loss {loss} is for classifiers"):
            ParityTask(box_net(), Coding(2), boxes(40, seed=0), loss, QUICK, SCORES["r2"])


def test_labels_of_another_model_are_refused(images) -> None:
    with pytest.raises(ValueError, match="the labels have 4 numbers each, the deployed model answers 3"):
        ParityTask(mlp(), Coding(2), boxes(40, seed=0), "mse", QUICK, SCORES["r2"])
    with pytest.raises(ValueError, match="the labels go up to 7, the deployed model answers 3 classes"):
        ParityTask(mlp(), Coding(2), Images(images.x, images.y + 5), "mse", QUICK)


def test_the_deployed_model_answers_images_that_are_not_augmented_once(deployed, images) -> None:
    class Counted(nn.Module):
        rows = 0

        def forward(self, x):
            self.rows += len(x)
            return deployed(x)

    for settings, once in ((QUICK, True), (TrainingSettings(epochs=6, batch_size=32, flip=True), False)):
        counted = Counted()
        task = ParityTask(counted, Coding(2), images, "mse", settings)
        counted.rows = 0
        train(mlp(), task, settings)
        assert (counted.rows == len(task.images.x)) == once


def test_a_bad_score_is_still_the_best_so_far() -> None:
    """An R² may be far below zero; what was trained must be kept all the same."""
    images = boxes(60, seed=3)
    task = RegressionTask(images, TrainingSettings(epochs=1, batch_size=32), SCORES["r2"])
    net = box_net()
    for parameter in net.parameters():
        nn.init.constant_(parameter, 0.5)
    before = copy.deepcopy(net)
    trained = train(net, task, TrainingSettings(epochs=1, batch_size=32))
    assert trained.score < -1.0
    assert not same(trained.net, before)
