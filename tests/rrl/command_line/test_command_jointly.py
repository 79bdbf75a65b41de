"""Two models of one server tuned together, on a real server under load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from rrl.command_line.ending import LIMIT_BROKEN
from rrl.command_line.opening.core_budget import cores_used
from rrl.joint import by_model
from rrl.journal import read, read_ending
from rrl.tuning.restore import RestorePoint
from serving_adapter.target import OpenInferenceTarget, RequestsRefused
from serving_adapter.target.open_inference.joint_target import JointTarget
from tests.support.runs.running_command import exit_code
from tests.support.servers.running_server import start
from tests.support.waiting import until

QUICK = ("--interval-s", "0.25", "--settle-s", "0.05", "--knobs", "instances=1:2,max_batch_size=1,4")
MODELS = ("sleep", "noop")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of two models, each under load."""
    running = start("--model", "sleep", "--model", "noop", "--model-option", "sleep.ms=5")
    assert running.process.stdout is not None
    folders = {model: tmp_path_factory.mktemp(f"load-{model}") for model in MODELS}
    load = [sys.executable, "-m", "serving_adapter.load.command_line", "--target", running.address]
    loads = [
        subprocess.Popen(
            [*load, "--model", model, "--rate", rate, "--duration-s", "0", "--out", str(folder)],
            stdout=subprocess.DEVNULL,
        )
        for (model, folder), rate in zip(folders.items(), ("20", "10"), strict=True)
    ]
    try:
        with closing(JointTarget(running.address, MODELS, timeout_s=60.0)) as target:
            target.connect(control=False)
            until(lambda: all(each.success > 10 for each in target.read().models.values()))
        yield running.address
    finally:
        for process in loads:
            process.terminate()
            process.wait(30)
        running.stop()
        running.process.stdout.close()
    for folder in folders.values():
        assert json.loads((folder / "load.json").read_text())["failed"] == {}


@pytest.fixture
def target(both: str) -> Iterator[JointTarget]:
    """Both models, found and left in the same configuration."""
    with closing(JointTarget(both, MODELS, timeout_s=60.0)) as found:
        found.connect()
        before = found.configuration()
        yield found
        found.apply(before)


def test_two_models_are_tuned_together(
    both: str, target: JointTarget, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = target.configuration()
    common = ["--target", both, "--model", "sleep,noop", "--jointly", "--cores", 3]
    common += [*QUICK[:4], "--knobs", "instances=1:3", "sleep.max_batch_size=1,4"]
    assert exit_code(*common, "--pin", "intra_op_threads=1", "--intervals", 6, "--out", "run") == 0
    header, records = read(tmp_path / "run")
    assert header.model == "sleep,noop"
    assert header.found == found
    assert header.space.to_json() == {
        "sleep.instances": [1, 2, 3],
        "sleep.max_batch_size": [1, 4],
        "sleep.intra_op_threads": [1],
        "noop.instances": [1, 2, 3],
        "noop.intra_op_threads": [1],
    }
    assert all(set(r.measurement.models) == set(MODELS) for r in records if r.counted)
    assert sum(r.failures for r in records) == 0
    proposed = [r for r in records if r.decision == "agent"]
    most = max(3, cores_used(header.found))  # what was found may always come back
    assert all(cores_used({**header.found, **r.configuration}) <= most for r in proposed)
    ending = read_ending(tmp_path / "run")
    assert ending is not None
    assert ending.kept.items() <= target.configuration().items()
    assert not list(state_home.glob("*.json"))  # no claim is left
    kept = yaml.safe_load((tmp_path / "run" / "best_configuration.yaml").read_text())
    assert kept["configuration"] == ending.kept
    configs = json.loads((tmp_path / "run" / "best_model_config.json").read_text())
    assert [config["name"] for config in configs.values()] == list(configs) == list(MODELS)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "sleep instances" in page
    assert "--jointly" in page
    capsys.readouterr()
    assert exit_code("--resume", "run", "--intervals", 8) == 0
    assert sum(r.kind == "tune" and r.counted for r in read(tmp_path / "run")[1]) == 8
    assert exit_code("--export", "run") == 0


def test_they_are_watched_together_and_the_watch_goes_on_with_its_folder(
    both: str, target: JointTarget, tmp_path: Path, state_home: Path
) -> None:
    common = ["watch", "--target", both, "--model", "sleep,noop", "--jointly", "--cores", 3, *QUICK]
    assert exit_code(*common, "--intervals", 6, "--out", "run") == 0
    first = read(tmp_path / "run")[1]
    assert set(first[-1].measurement.models) == set(MODELS)
    assert exit_code(*common, "--intervals", len(first) + 2, "--out", "run") == 0
    after = read(tmp_path / "run")[1][len(first) :]
    assert after
    assert not any(record.kind == "baseline" for record in after)
    assert sum(record.failures for record in (*first, *after)) == 0


def test_a_model_over_the_limit_does_not_end_the_run_of_the_next(
    both: str, target: JointTarget, tmp_path: Path, state_home: Path
) -> None:
    common = ("--target", both, "--model", "sleep,noop", "--slo-p95-ms", 3, "--validation", 0, *QUICK)
    run = (*common, "--agent", "random", "--intervals", 2, "--out", "run", "--exit-code")
    assert exit_code(*run) == LIMIT_BROKEN, "a request of the first one sleeps for 5 ms"
    assert all((tmp_path / "run" / model / "summary.json").exists() for model in MODELS)


def test_a_model_that_calls_another_is_tuned_with_it_for_its_own_latency(
    both: str, target: JointTarget, tmp_path: Path, state_home: Path
) -> None:
    common = ["--target", both, "--model", "sleep", "--bls-composing-models", "noop", "--cores", 3]
    common += [*QUICK[:4], "--knobs", "instances=1:2", "--pin", "noop.instances=1"]
    assert exit_code(*common, "--intervals", 3, "--validation", 0, "--out", "run") == 0
    header, records = read(tmp_path / "run")
    assert header.model == "sleep"
    assert header.space.to_json() == {"sleep.instances": [1, 2], "noop.instances": [1]}
    for record in records:
        if record.counted:
            own = record.measurement.models["sleep"]
            assert set(record.measurement.models) == set(MODELS)
            assert record.measurement.completions == own.completions
            assert record.measurement.latency == own.latency
    assert not list(state_home.glob("*.json"))
    folders = {path.name for path in (tmp_path / "run" / "best_config").iterdir()}
    assert folders == set(MODELS)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "--bls-composing-models noop" in page
    assert exit_code("--resume", "run", "--intervals", 4) == 0
    assert sum(r.kind == "tune" and r.counted for r in read(tmp_path / "run")[1]) == 4


def test_what_a_killed_run_had_found_of_both_is_put_back(
    both: str, target: JointTarget, tmp_path: Path
) -> None:
    found = target.configuration()
    others = {**found, "sleep.instances": 2, "noop.instances": 2}
    claims = (
        "import sys; from rrl.tuning.restore import RestorePoint as R\n"
        "for model, found, after in {rows}:\n"
        "    point = R({address!r}, model); point.claim(found); point.changing(found, after)"
    )
    parts, after = by_model(found), by_model(others)
    rows = [(model, parts[model], after[model]) for model in MODELS]
    subprocess.run([sys.executable, "-c", claims.format(rows=rows, address=both)], check=True)
    target.apply(others)
    common = ("--target", both, "--model", "sleep,noop", "--jointly", "--agent", "random", *QUICK)
    assert exit_code(*common, "--intervals", 1, "--out", "run") == 0
    assert read(tmp_path / "run")[0].found == found
    log = (tmp_path / "run" / "changes.log").read_text()
    assert "sleep instances 2 -> 1, noop instances 2 -> 1" in log


def test_a_change_that_one_model_refuses_is_made_of_none(target: JointTarget, monkeypatch) -> None:
    before = target.configuration()

    def refuses(configuration: dict[str, int]) -> None:
        raise RequestsRefused("some requests hold several items")

    with monkeypatch.context() as patch:
        patch.setattr(target.members["noop"], "apply", refuses)
        with pytest.raises(RequestsRefused, match="several items"):
            target.apply({"sleep.instances": 2, "noop.instances": 2})
    assert target.configuration() == before


def test_a_run_of_one_of_the_models_is_kept_off_meanwhile(
    both: str, target: JointTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    point = RestorePoint(target.address, "noop")
    point.claim(target.members["noop"].configuration())
    try:
        code = exit_code("--target", both, "--model", "sleep,noop", "--jointly", *QUICK, "--out", "run")
    finally:
        point.release()
    assert code == 2
    assert "tunes noop" in capsys.readouterr().err
    with closing(OpenInferenceTarget(both, "sleep")) as sleep:
        sleep.connect()
        assert sleep.configuration() == by_model(target.configuration())["sleep"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "sleep", "--jointly"], "--jointly tunes several models: name them"),
        (["--jointly"], "--jointly tunes several models: name them"),
        (["--model", "sleep,noop", "--jointly", "--advise"], "leave --advise and --bench away"),
        (["--model", "sleep,noop", "--jointly", "--knobs", "bert.instances=1,2"], "--knobs names bert"),
        (["--model", "sleep,noop", "--bls-composing-models", "x"], "is of one model, which calls them"),
        (["--model", "sleep", "--bls-composing-models", "sleep"], "names sleep itself: leave it away"),
        (["--model", "sleep", "--bls-composing-models", "noop,"], "must name models once each"),
        (["--model", "sleep", "--bls-composing-models", "noop", "--advise"], "leave --advise away"),
        (["--model", "sleep", "--bls-composing-models", "bert"], "model 'bert' is not there"),
        (["--model", "sleep", "--bls-composing-models", "noop", "--pin", "x.instances=1"], "--pin names x"),
        (
            [
                *("--model", "sleep", "--bls-composing-models", "noop"),
                *("--objective", "least-resources", "--slo-p95-ms", "50"),
            ],
            "sleep is tuned by its parts, sleep, noop: take latency or strict-slo",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_jointly(
    both: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("--target", both, *arguments) == 2
    assert says in capsys.readouterr().err


def test_a_dry_run_tells_the_joint_grid(both: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--target", both, "--model", "sleep,noop", "--jointly", "--cores", 4, *QUICK)
    assert exit_code(*arguments, "--pin", "sleep.instances=2", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "keeps sleep.instances" in said
    assert "tries noop.instances" in said
