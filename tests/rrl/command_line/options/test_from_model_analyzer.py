"""What `--from-model-analyzer` stands for, whichever of flags and `--config` name file, model and load."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rrl.command_line.options.from_model_analyzer import defaults
from rrl.command_line.options.options import TuneOptions
from serving_adapter.flags.parsing import parse
from tests.support.runs.running_command import exit_code

FILE = "ma.yaml"


@pytest.fixture(autouse=True)
def file_of_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"a": {"latency_budget": 30}, "b": {"latency_budget": 40, "concurrency": 8}}
    Path(FILE).write_text(yaml.safe_dump({"profile_models": models, "triton_launch_mode": "remote"}))


def options(*arguments: str, **configured: object) -> TuneOptions:
    """The options of these arguments and of a --config with these values."""
    Path("t.yaml").write_text(yaml.safe_dump(configured))
    return parse(TuneOptions, ["--config", "t.yaml", *arguments], defaults)


@pytest.mark.parametrize("flag", [("--from-model-analyzer", FILE), (f"--from_model_analyzer={FILE}",)])
def test_the_flag_names_the_file_with_hyphens_or_underscores(flag: tuple[str, ...]) -> None:
    found = options(*flag, "--deployment", "b")
    assert (found.target, found.model, found.slo_p95_ms) == ("localhost:8001", "b", 40.0)


def test_the_configuration_may_name_file_model_and_load() -> None:
    found = options(from_model_analyzer=FILE, model="b", bench=True)
    assert (found.target, found.model, found.slo_p95_ms) == ("localhost:8001", "b", 40.0)
    assert (found.bench, found.concurrency, found.objective) == (True, "8", "throughput")


@pytest.mark.parametrize("configured", [{"model": "b"}, {"model": "b", "bench": False}])
def test_flags_override_the_configuration(configured: dict[str, object]) -> None:
    found = options("--from-model-analyzer", FILE, "--model", "a", "--bench", **configured)
    assert (found.model, found.slo_p95_ms, found.concurrency) == ("a", 30.0, "64")
    found = options("--from-model-analyzer", FILE, "--no-bench", **configured | {"bench": True})
    assert (found.model, found.bench, found.concurrency) == ("b", False, None)


def test_the_configuration_overrides_what_the_file_stands_for() -> None:
    assert options("--from-model-analyzer", FILE, model="b", slo_p95_ms=20).slo_p95_ms == 20.0


def test_what_is_left_out_is_said_where_the_configuration_names_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options(from_model_analyzer=FILE, model="b")
    assert f"{FILE}: latency_budget at most 40 ms: kept as a limit on the p95" in capsys.readouterr().err


def test_rrl_tune_reads_the_file_that_its_configuration_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.yaml").write_text(yaml.safe_dump({"from_model_analyzer": FILE, "model": "c"}))
    assert exit_code("--config", "t.yaml") == 2
    assert f"{FILE} has no model 'c'; it profiles a, b" in capsys.readouterr().err


def test_a_load_named_beside_the_file_replaces_that_of_the_file() -> None:
    found = options("--from-model-analyzer", FILE, "--model", "b", "--bench", "--rate", "9")
    assert (found.rate, found.concurrency, found.objective) == (9.0, None, "latency")
    Path(FILE).write_text("profile_models: a\nrequest_rate: 9\n")
    assert options("--from-model-analyzer", FILE, "--bench").rate == 9.0
    found = options("--from-model-analyzer", FILE, bench=True, concurrency=2)
    assert (found.rate, found.concurrency) == (None, 2)


def test_models_profiled_concurrently_are_observed_in_turn() -> None:
    Path(FILE).write_text("profile_models: [a, b]\nrun_config_profile_models_concurrently_enable: true\n")
    assert options("--from-model-analyzer", FILE).jointly
    assert not options("--from-model-analyzer", FILE, "--advise").jointly
