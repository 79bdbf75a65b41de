"""The store's benchmarks: the paper's networks, rows that outlive a stop, tables; and each once, in short."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.benchmarks.store import cold_start, workload
from scripts.benchmarks.store.cold_start import Options as ColdStartOptions
from scripts.benchmarks.store.cold_start_report import (
    HIT,
    IDEAL,
    MISS,
    PEERS,
    factors,
    result,
    steps_of,
    to_ideal,
)
from scripts.benchmarks.store.paper_networks import NETWORKS, image_for, on_meta, shapes_of
from scripts.benchmarks.store.weight_files import MIB, MODELS, TABLE_3
from scripts.benchmarks.store.workload import Options as WorkloadOptions
from scripts.benchmarks.store.workload import asked_for
from scripts.benchmarks.store.workload_report import cells, speed_up
from scripts.benchmarks.store.workload_report import result as workload_result
from scripts.kept_rows import KeptRows, OtherSetting
from scripts.pipeline import __main__ as pipeline
from tests.support import CHECKOUT

# --- the models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_paper_has_its_bytes_and_tensors(name: str) -> None:
    shapes = shapes_of(name)
    assert 4 * sum(map(math.prod, shapes.values())) / MIB == pytest.approx(MODELS[name].mib, rel=0.03)
    assert len(shapes) == pytest.approx(MODELS[name].tensors, rel=0.06)  # MXNet normalises the image, too


def test_most_of_them_are_networks_that_run() -> None:
    assert sum(model.name in NETWORKS for model in TABLE_3) == 29


@pytest.mark.parametrize(
    "name", ["SqueezeNet-v1.1", "NIN", "GoogLeNet", "ResNet18-v2", "ResNet50-v2", "ResNeXt26-32x4d", "DPN68"]
)
def test_a_network_answers_with_the_weights_that_its_file_has(name: str) -> None:
    """On a small image, for which these need no other weights."""
    torch.manual_seed(0)
    network = on_meta(name)
    weights = {key: torch.rand(shape) * 0.04 - 0.02 for key, shape in shapes_of(name).items()}
    weights |= {key: value.abs() + 0.01 for key, value in weights.items() if "running_var" in key}
    network.load_state_dict(weights, assign=True, strict=False)
    for key, tensor in network.state_dict().items():
        if tensor.is_meta:
            assert "num_batches_tracked" in key
    with torch.inference_mode():
        answer = network(image_for(name)[:, :, :96, :96])
    assert answer.isfinite().all()
    assert answer.shape == ((1, 1000) if name in NETWORKS else ())


# --- cold starts -----------------------------------------------------------------------------------


def cold_rows(model: str, **totals_ms: float) -> list[dict[str, Any]]:
    """Two rounds of each way, 100 ms each but for those totals."""
    ways = dict.fromkeys((HIT, MISS, IDEAL, *PEERS), 100.0) | totals_ms
    return [
        {"model": model, "way": way, "round": i}
        | {"load_ms": ms * 0.5, "init_ms": ms * 0.2, "compute_ms": ms * 0.3, "cpu_ms": ms}
        for way, ms in ways.items()
        for i in range(2)
    ]


def test_factors_are_end_to_end_and_the_reach_counts_models_above_50_mb() -> None:
    rows = cold_rows("SqueezeNet-v1.0", **{HIT: 150.0}) + cold_rows(
        "VGG16", **{HIT: 108.0, "torch.load, cached": 324.0}
    )
    steps = steps_of(rows)
    assert factors(steps, "torch.load, cached") == {
        "SqueezeNet-v1.0": pytest.approx(100 / 150),
        "VGG16": pytest.approx(3.0),
    }
    assert to_ideal(steps)["SqueezeNet-v1.0"] == pytest.approx(1.5)
    found = result(rows)
    assert (found["value"], found["holds"]) == (1.08, True)
    assert not result(cold_rows("VGG16", **{HIT: 111.0}))["holds"]


def test_a_model_that_is_not_measured_in_every_way_is_left_out() -> None:
    rows = [row for row in cold_rows("VGG16") if row["way"] != MISS] + cold_rows("ResNet50")
    assert list(steps_of(rows)) == ["ResNet50"]


def test_the_ideal_is_a_process_that_has_read_the_weights_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a parent has filled costs its child something at the first touch."""
    events: list[str] = []
    load, seconds = torch.load, iter(range(100))

    def reading(*arguments: Any, **keywords: Any) -> Any:
        events.append("read")
        return load(*arguments, **keywords)

    def second() -> float:
        events.append("clock")
        return float(next(seconds))

    def in_children(works: Sequence[Callable[[], Any]]) -> list[Any]:
        events.append("forked")
        return [work() for work in works]

    monkeypatch.setattr(cold_start, "running_store", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(cold_start, "in_children", in_children)
    monkeypatch.setattr(cold_start, "_be_busy", lambda length_s: events.append(f"busy {length_s} s"))
    monkeypatch.setattr(torch, "load", reading)
    monkeypatch.setattr(time, "perf_counter", second)
    rows = KeptRows(None, ("model", "round", "way"))
    cold_start._measure("SqueezeNet-v1.1", [(0, IDEAL)], rows)
    assert events == ["forked", "read", "busy 0.2 s", *4 * ["clock"]]
    assert [(row["way"], row["load_ms"]) for row in rows] == [(IDEAL, 1000.0)]


def test_each_way_is_the_first_of_a_round_in_turn() -> None:
    ways = [cold_start.in_turn(number) for number in range(len(cold_start.WAYS))]
    assert {each[0] for each in ways} == set(cold_start.WAYS)
    assert all(sorted(each) == sorted(cold_start.WAYS) for each in ways)


def test_the_models_of_a_run_go_from_the_smallest_to_the_largest() -> None:
    names = ColdStartOptions(all=True).names
    assert [MODELS[name].mib for name in names] == sorted(MODELS[name].mib for name in names)
    assert set(names) == set(NETWORKS)
    with pytest.raises(ValueError, match="no network 'x'"):
        ColdStartOptions(models=("x",))


# --- the workload ----------------------------------------------------------------------------------


def test_a_share_of_the_models_is_asked_for_and_every_run_of_a_seed_the_same() -> None:
    names = [model.name for model in TABLE_3]
    asked = asked_for(names, 0.25, 500, seed=3)
    assert len(set(asked)) == 9
    assert asked == asked_for(names, 0.25, 500, seed=3)
    assert asked != asked_for(names, 0.25, 500, seed=4)
    assert len(set(asked_for(names, 1.0, 2000, seed=3))) > 30


def workload_row(way: str, batch_s: float, **latency_ms: float) -> dict[str, Any]:
    run = {"clients": 2, "share": 0.5, "seed": 0, "requests": 10}
    return run | {"way": way, "batch_s": batch_s, "latency_ms": latency_ms, "hits": 8, "private": 0}


def test_speed_ups_are_geometric_means_over_models_and_throughput_is_of_batches() -> None:
    ours, theirs = workload_row("lru", 5.0, a=10, b=10), workload_row("torch.load", 10.0, a=40, b=10)
    assert speed_up(ours, theirs) == pytest.approx(2.0)
    assert cells([ours, theirs], "lru", "torch.load") == {(2, 0.5): (pytest.approx(2.0), 2.0, 0.8)}
    found = workload_result([ours, theirs])
    assert (found["value"], found["holds"]) == (2.0, True)
    assert not workload_result([theirs | {"way": "lru"}, ours | {"way": "torch.load"}])["holds"]


def test_a_workloads_runs_of_another_length_are_kept_but_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(way: str, asked: Sequence[str], *_: object) -> dict[str, Any]:
        batch_s = 5.0 if way == "lru" and len(asked) == 24 else 10.0
        return {"batch_s": batch_s, "latency_ms": {"a": 10.0}, "hits": 0, "private": 0}

    def value(file: str, requests: int, *flags: str) -> float:
        lengths = ("--clients", "2", "--shares", "1", "--requests", str(requests))
        arguments = (*lengths, "--ways", "torch.load", "lru", "--out", str(tmp_path / file), *flags)
        monkeypatch.setattr(sys, "argv", ["bench", "store-workload", *arguments])
        return float(workload.run()["value"])

    monkeypatch.setattr(workload, "_served", served)
    assert (value("both", 24), value("both", 12), value("both", 24)) == (2.0, 1.0, 2.0)
    value("quick", 12, "--quick")
    with pytest.raises(OtherSetting, match="holds rows with models="):
        value("quick", 12)


@pytest.mark.parametrize("wrong", [{"shares": (0.0,)}, {"requests": 0}, {"clients": (0,)}])
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--"):
        WorkloadOptions(**wrong)


# --- in short --------------------------------------------------------------------------------------


def ran(*arguments: object) -> str:
    """What a command prints. Its files are on a disk, which the folder of temporary files need not be."""
    ended = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], env=os.environ | {"TMPDIR": "/var/tmp"},
        cwd=CHECKOUT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", ["store-cold-start", "store-workload"])
def test_the_benchmark_runs_in_short_and_keeps_its_rows(tmp_path: Path, name: str) -> None:
    arguments = ("scripts.benchmarks", name, "--quick", "--out", tmp_path / "rows.jsonl")
    weights = ("--weights", tmp_path / "weights") if name == "store-workload" else ()
    lines = ran(*arguments, *weights).splitlines()
    assert json.loads(lines[-1])["name"] == name
    rows = (tmp_path / "rows.jsonl").read_text()
    assert rows.count("\n") == (7 if name == "store-cold-start" else 2)


def test_the_pipeline_runs_in_short() -> None:
    lines = ran("scripts.pipeline", "--quick").splitlines()
    assert lines[1].startswith("rrl-store run")
    assert lines[-1].startswith("the image, in random words: ")


def test_pipelines_are_called_at_once_and_each_hands_on_its_own_answers(monkeypatch) -> None:
    both = threading.Barrier(2)

    def called(process: str, asked: dict[str, Any]) -> dict[str, Any]:
        both.wait(timeout=60)
        return {"answer": asked | {process: len(asked)}}

    monkeypatch.setattr(pipeline, "called", called)
    processes: Any = [["a", "b", "c"], ["d", "e", "f"]]
    replies = pipeline.called_at_once(processes)
    assert [each[-1]["answer"] for each in replies] == [{"a": 0, "b": 1, "c": 2}, {"d": 0, "e": 1, "f": 2}]
