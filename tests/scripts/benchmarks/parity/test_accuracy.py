"""The accuracy's benchmark: its pairs, its verdict, and that what was trained is not trained again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.parity import accuracy, pair_training
from scripts.benchmarks.parity.accuracy import Options, measured, result
from scripts.benchmarks.parity.accuracy_recipes import RECIPES, reach_points
from scripts.benchmarks.parity.pair_training import AccuracyRow
from serving_adapter.parity import fashion_mnist
from serving_adapter.parity.training import Interrupted, TrainingWatch, train
from tests.support.fashion_files import write_fashion_files


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_fashion_files(tmp_path / "data")
    monkeypatch.setattr("serving_adapter.parity.datasets.BOXES", {"train": 40, "test": 20})
    for module in ("evaluation", "tasks"):  # forty items are grouped once, not until there are thousands
        monkeypatch.setattr(f"serving_adapter.parity.{module}.rounds_for", lambda *_: 1)
    monkeypatch.setattr(pair_training, "CALLS", 3)
    monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path)
    return tmp_path / "data"


def row(points: float = 5.0, pair: str = "digits/mlp", **changes: Any) -> AccuracyRow:
    values = {
        "pair": pair, "code": "sum", "k": 2, "loss": "mse", "score": "top-1", "available": 0.9,
        "degraded": 0.9 - points / 100, "overall": {}, "default": 0.1, "deployed_s": 10.0, "parity_s": 20.0,
        "deployed_ms": 1.0, "parity_ms": 1.0,
    }  # fmt: skip
    return AccuracyRow(**(values | changes))  # type: ignore[arg-type]


def test_a_pair_is_named_by_its_data_and_networks() -> None:
    assert {"fashion-mnist/mlp", "cat-dog/resnet18-w16", "fashion-mnist/lenet5+resnet18-w16"} <= set(RECIPES)
    for name, recipe in RECIPES.items():
        assert recipe.pair == name


@pytest.mark.parametrize(
    ("rows", "holds"),
    [
        ([row(6.4)], True),
        ([row(6.6)], False),
        ([row(9.7, "fashion-mnist/mlp"), row(6.0)], True),
        ([row(9.9, "fashion-mnist/mlp")], False),
        ([row(27.9, "fashion-boxes/lenet5", score="iou")], True),
        ([row(5.0), row(40.0, k=4)], True),  # only k = 2 is judged
        ([row(5.0, parity_s=121.0)], False),
    ],
)
def test_the_verdict_is_by_the_papers_worst_of_the_kind(rows: list[AccuracyRow], holds: bool) -> None:
    assert result(rows, Options())["holds"] is holds


def test_the_worst_is_the_nearest_to_its_reach_or_beyond() -> None:
    found = result([row(6.0), row(8.0, "fashion-mnist/mlp")], Options())
    assert found["unit"].endswith("digits/mlp")
    assert reach_points("digits/mlp") == 6.5


def test_what_was_trained_is_not_trained_again(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(
        pairs=("fashion-mnist/mlp",), k=(2,), codes=("sum", "r2"), data_folder=data_folder,
        out=tmp_path / "kept", quick=True,
    )  # fmt: skip
    first = measured(options)
    assert [(one.code, one.score) for one in first] == [("sum", "top-1"), ("r2", "top-1")]
    assert set(first[0].overall) == {"0.01", "0.02", "0.05", "0.1"}
    a_o = 0.9 * first[0].available + 0.1 * first[0].degraded
    assert first[0].overall["0.1"] == pytest.approx(a_o)
    assert not list((tmp_path / "kept").glob("*.checkpoint"))
    monkeypatch.setattr(pair_training, "train", lambda *_: 1 / 0)
    again = measured(options)
    assert [(one.available, one.degraded) for one in again] == [
        (one.available, one.degraded) for one in first
    ]


def test_a_training_that_was_stopped_goes_on(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(
        pairs=("fashion-mnist/mlp",), k=(2,), codes=("sum",), data_folder=data_folder,
        out=tmp_path / "kept", quick=True,
    )  # fmt: skip
    expected = measured(Options(**(vars(options) | {"out": tmp_path / "whole"})))

    def stopped(net: Any, task: Any, settings: Any, watch: TrainingWatch) -> Any:
        steps: list[int] = []
        watch.on_step, watch.stopping = lambda done, *_: steps.append(done), lambda: len(steps) == 1
        return train(net, task, settings, watch)

    with monkeypatch.context() as patch:
        patch.setattr(pair_training, "train", stopped)
        with pytest.raises(Interrupted):
            measured(options)
    assert list((tmp_path / "kept").glob("*.checkpoint"))
    found = measured(options)
    assert [(one.available, one.degraded) for one in found] == [
        (one.available, one.degraded) for one in expected
    ]


@pytest.mark.parametrize("pair", ["fashion-boxes/lenet5", "fashion-mnist/lenet5+resnet18-w16"])
def test_boxes_and_larger_parity_models(data_folder: Path, pair: str) -> None:
    options = Options(
        pairs=(pair,), k=(2,), codes=("sum",), losses=("mse", "decoded"), data_folder=data_folder, quick=True
    )
    rows = measured(options)
    if "boxes" in pair:
        assert [(one.loss, one.score) for one in rows] == [("mse", "iou")]
    else:
        assert min(rows[0].parity_ms, rows[0].deployed_ms) > 0


def test_data_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "parity-accuracy", "--pairs", "fashion-mnist/mlp"])
    with pytest.raises(SystemExit) as ended:
        accuracy.run()
    assert ended.value.code == 2
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pairs": ("mnist/mlp",)}, "--pairs must be among all, fashion-mnist/mlp, .*, got mnist/mlp"),
        ({"k": (1,)}, "--k must be at least 2, got 1"),
        ({"losses": ()}, "--losses must be among mse"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Options(**options)


def test_all_pairs_can_be_asked_for() -> None:
    assert len(Options(pairs=("all",)).recipes) == len(RECIPES)
