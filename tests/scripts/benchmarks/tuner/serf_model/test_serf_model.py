"""`serf-model`: what it predicts of a run, with and without the drift of the machine, and its rows."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rrl.queueing.front_share import FrontShare
from rrl.queueing.interference import Queue, predict
from rrl.queueing.start_up import predict_with_start_up
from scripts.benchmarks.tuner.serf_model import benchmark as serf_model
from scripts.benchmarks.tuner.serf_model.cases import (
    OURS,
    SERF,
    START_UP,
    Case,
    LightProfile,
    MeasuredRun,
    outcome,
    summary,
)
from scripts.benchmarks.tuner.serf_model.recorded_runs import RecordedRuns

CORES = 2
TIMES_S = np.array([0.010, 0.014, 0.021])  # with 1, 2 and 3 requests in service
RATE_PER_S = 60.0
PROFILE = LightProfile(TIMES_S, np.full(3, 100.0), TIMES_S, np.full(3, 30.0), ())


def ran(slower: float = 1.0, missed: float = 1.0) -> MeasuredRun:
    """A run of which the model misses `missed`, on a machine so much slower than when it was profiled."""
    true = predict(slower * TIMES_S[None], np.array([3]), RATE_PER_S)
    latency_s, service_s = float(true.mean_latency_s[0]), float(true.mean_service_s[0])
    return MeasuredRun(3, 1, 0.45, RATE_PER_S, 1e3 * missed * latency_s, 1e3 * service_s)


def case(run: MeasuredRun, profile: LightProfile = PROFILE) -> Case:
    return Case.of(run, profile, CORES)


def test_a_run_that_the_model_describes_has_no_error() -> None:
    found = case(ran())
    for model in (SERF, START_UP, OURS):
        assert found.raw_percent(model) == pytest.approx(0.0, abs=1e-6)
        assert found.adjusted_percent(model) == pytest.approx(0.0, abs=0.01)
    assert found.raw_percent(Queue.MD_C.value) < -5  # blind to interference: too short


def test_drift_since_the_profile_is_an_error_with_a_sign_and_the_adjusted_error_is_free_of_it() -> None:
    slowed, sped_up = (case(ran(slower)) for slower in (1.1, 0.9))
    assert slowed.raw_percent() < -8
    assert sped_up.raw_percent() > 8
    assert max(abs(slowed.adjusted_percent()), abs(sped_up.adjusted_percent())) < 0.01


def test_each_run_is_predicted_from_the_profile_between_its_two_so_that_even_drift_cancels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P R P R P R P R P, each on a machine 2 % slower than before."""
    slowness = (1 + 0.02 * k for k in count())

    def profiled(*_: object) -> LightProfile:
        return PROFILE.slower(next(slowness))

    def on_this_machine(_: object, load: Any, *__: object) -> MeasuredRun:
        return ran(next(slowness))._replace(share=load.share)

    monkeypatch.setattr(serf_model, "_profiled", profiled)
    monkeypatch.setattr(serf_model, "_ran", on_this_machine)
    site: Any = SimpleNamespace(model_cores=CORES)
    rows = RecordedRuns(None, {}, [])
    found = serf_model._in_turns(site, 3, 1, serf_model.Options(), 0, rows)
    for model in (SERF, START_UP, OURS):
        assert [each.raw_percent(model) for each in found] == pytest.approx([0.0] * 4, abs=1e-6)
    used = [profile.warm_s / TIMES_S for _, profile in rows.of(3, 1, runs=4)]
    np.testing.assert_allclose(used, np.outer([1.02, 1.06, 1.10, 1.14], np.ones(3)))


def test_what_the_model_gets_wrong_stays_in_the_adjusted_error() -> None:
    assert case(ran(slower=1.1, missed=1.25)).adjusted_percent() == pytest.approx(
        100 * (1 / 1.25 - 1), abs=0.01
    )


def test_a_start_up_after_rest_is_an_error_of_the_model_that_leaves_it_out() -> None:
    profile = replace(PROFILE, rested_s=1.25 * TIMES_S)
    true = predict_with_start_up(profile.warm_s, profile.rested_s, RATE_PER_S)
    run = MeasuredRun(3, 1, 0.45, RATE_PER_S, 1e3 * true.mean_latency_s, 1e3 * true.mean_service_s)
    found = case(run, profile)
    assert found.raw_percent(START_UP) == pytest.approx(0.0, abs=1e-6)
    assert found.raw_percent(OURS) == pytest.approx(0.0, abs=1e-6)
    assert found.raw_percent(SERF) < -10


def test_the_fronts_share_at_the_profiles_rate_is_replaced_by_that_at_the_runs() -> None:
    share = FrontShare(CORES, 1, (0.001, 0.001))
    profiled = LightProfile(
        share.beside(TIMES_S, 100.0),
        np.full(3, 100.0),
        share.beside(TIMES_S, 30.0),
        np.full(3, 30.0),
        share.cpu_s,
    )
    beside_s = share.beside(TIMES_S, RATE_PER_S)
    true = predict(beside_s[None], np.array([3]), RATE_PER_S)
    latency_ms, service_ms = 1e3 * float(true.mean_latency_s[0]), 1e3 * float(true.mean_service_s[0])
    found = case(MeasuredRun(3, 1, 0.45, RATE_PER_S, latency_ms, service_ms), profiled)
    assert found.raw_percent(OURS) == pytest.approx(0.0, abs=1e-6)
    assert found.raw_percent(SERF) > 2  # profiled while the front had more to do


def cases() -> list[Case]:
    return [case(ran(missed=missed)) for missed in (1.0, 1 / 1.1, 1 / 0.96, 1.0)]


def test_the_outcome_is_judged_by_the_errors_without_the_drift_taken_out() -> None:
    found = outcome(cases())  # of 0, 10, -4 and 0 %
    assert (found["value"], found["signed_percent"]) == (3.5, 1.5)
    assert (found["p90_percent"], found["holds"]) == (8.2, True)
    slow = [case(ran(1.2))] * 2
    assert not outcome(slow)["holds"]
    assert outcome(slow)["adjusted_percent"] == 0


def test_the_summary_tells_every_models_errors_and_the_sign_of_each_case() -> None:
    lines = summary(cases())
    ours = next(line for line in lines if line.startswith(OURS))
    assert ours.removeprefix(OURS).split()[:6:2] == ["3.5", "8.2", "+1.5"]
    assert lines[-1].split()[:3] == ["3", "x", "1"]
    assert [cell for cell in lines[-1].replace("/", " ").split() if cell[0] in "+-"][::2] == [
        "+0.0",
        "+10.0",
        "-4.0",
        "+0.0",
    ]


def test_an_interrupted_benchmark_goes_on_with_whole_configurations(tmp_path: Path) -> None:
    path, setting = tmp_path / "runs.jsonl", {"seconds": 8.0}
    rows = RecordedRuns.open(path, setting)
    for share in (0.15, 0.3):
        rows.add(ran()._replace(share=share), PROFILE)
    rows.add(ran()._replace(instances=2), PROFILE)
    again = RecordedRuns.open(path, setting)
    found = again.of(3, 1, runs=2)
    assert [run.share for run, _ in found] == [0.15, 0.3]
    assert Case.of(*found[0], CORES).raw_ms == case(ran()._replace(share=0.15)).raw_ms
    assert again.of(2, 1, runs=2) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1, is no run of serf-model"),
        (json.dumps({"run": {}, "profile": {}, "setting": {}}), "line 1, is no run of serf-model"),
    ],
)
def test_a_file_that_holds_something_else_is_one_sentence(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "runs.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        RecordedRuns.open(tmp_path / "runs.jsonl", {})


def test_rows_of_another_setting_are_refused(tmp_path: Path) -> None:
    RecordedRuns.open(tmp_path / "runs.jsonl", {"seed": 0}).add(ran(), PROFILE)
    with pytest.raises(ValueError, match="holds rows with seed=0, and those wanted have seed=1"):
        RecordedRuns.open(tmp_path / "runs.jsonl", {"seed": 1})


def test_the_benchmark_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    monkeypatch.setattr(serf_model, "PROFILE_S", 0.2)
    monkeypatch.setattr(serf_model, "SECONDS_AT", {0.3: 1.0})
    monkeypatch.setattr(serf_model, "INTRA_OP_THREADS", (1,))
    arguments = ["--instances", "1", "--seconds", "1", "--out", str(path), "--apart"]
    monkeypatch.setattr(sys, "argv", ["bench", "serf-model", *arguments])
    found = serf_model.run()
    assert found["cases"] == 1
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["profile"]["cpu_s"] == []
    run, profile = RecordedRuns.open(path, json.loads(line)["setting"]).of(1, 1, runs=1)[0]
    assert found["value"] == pytest.approx(abs(Case.of(run, profile, CORES - 1).raw_percent()), abs=0.01)
