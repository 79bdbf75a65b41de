"""The models for tests and measurements: they answer their input, and fail where they are told to."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from serving_adapter.models.loading import load_model
from serving_adapter.models.synthetic import CRASH_EXIT_CODE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noop", {}),
        ("sleep", {"ms": "0", "per_item_ms": "0.1"}),
        ("burn", {"size": "32", "rounds": "2", "rounds_per_item": "1"}),
        ("noop", {"crash_on": "7", "hang_on": "8"}),
    ],
)
def test_they_answer_their_input(name, options):
    model = load_model(name, options)
    x = torch.randn(3, 16)
    outputs = model.run({"x": x})
    assert list(outputs) == ["y"]
    assert torch.equal(outputs["y"], x)
    assert not model.has_parallel_branches


def test_sleep_sleeps_for_the_batch_and_for_each_item(monkeypatch):
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    load_model("sleep", {"ms": "20", "per_item_ms": "3"}).run({"x": torch.zeros(4, 16)})
    assert slept_s == [pytest.approx(0.032)]


def test_burn_does_a_fixed_number_of_products():
    model = load_model("burn", {"size": "32", "rounds": "3", "rounds_per_item": "2"})
    model.run({"x": torch.zeros(4, 16)})
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        model.run({"x": torch.zeros(4, 16)})
    (products,) = [event.count for event in profile.key_averages() if event.key == "aten::mm"]
    assert products == 3 + 2 * 4


def test_burn_with_branches_answers_its_input(apart):
    assert apart(burn_with_branches) == [True, True]


def burn_with_branches() -> list[bool]:
    torch.set_num_threads(1)
    model = load_model("burn", {"size": "32", "rounds": "2", "branches": "3"})
    torch.set_num_interop_threads(2)
    x = torch.randn(5, 16)
    return [model.has_parallel_branches, torch.equal(model.run({"x": x})["y"], x)]


@pytest.mark.parametrize("name", ["noop", "sleep", "burn"])
def test_the_chosen_value_ends_the_process(name, monkeypatch):
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    batch = torch.zeros(3, 16)
    batch[1, 0] = 666.0
    with pytest.raises(SystemExit, match=str(CRASH_EXIT_CODE)):
        load_model(name, {"crash_on": "666"}).run({"x": batch})


def test_the_chosen_value_hangs_the_process(apart):
    assert apart(hang) is True


def hang() -> bool:
    model = load_model("noop", {"hang_on": "13"})
    model.run({"x": torch.zeros(2, 16)})
    hung = threading.Thread(target=model.run, args=({"x": torch.full((1, 16), 13.0)},), daemon=True)
    hung.start()
    hung.join(0.3)
    return hung.is_alive()
