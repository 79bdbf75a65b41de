"""Files of Model Analyzer, as its documentation writes them, become options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rrl.command_line.options.model_analyzer import read
from rrl.command_line.options.options import TuneOptions


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def options(folder: Path, text: str, model: str | None = None) -> TuneOptions:
    return TuneOptions(**read(written(folder, text), model).values)


def test_the_least_that_a_file_has(tmp_path):
    found = options(tmp_path, "model_repository: /models\nprofile_models: add_sub\n")
    assert (found.target, found.metrics_url) == ("localhost:8001", "http://localhost:8002/metrics")
    assert (found.model, found.objective, found.knobs) == ("add_sub", "latency", ())


def test_what_a_file_says_of_values_objective_and_limit_is_taken(tmp_path):
    found = options(
        tmp_path,
        """
profile_models:
  add_sub:
    objectives:
      perf_latency_p99: 10
      perf_throughput: 5
    constraints:
      perf_latency_p99: {max: 50}
    parameters: {concurrency: {start: 1, stop: 64}}
    model_config_parameters:
      max_batch_size: [1, 2, 4]
      instance_group:
        - kind: KIND_CPU
          count: {start: 1, stop: 3}
      dynamic_batching:
        max_queue_delay_microseconds: [100, 500]
triton_launch_mode: remote
triton_grpc_endpoint: 10.0.0.7:9001
triton_metrics_url: 10.0.0.7:9002/metrics
""",
    )
    assert found.target == "10.0.0.7:9001"
    assert found.metrics_url == "http://10.0.0.7:9002/metrics"
    assert (found.objective, found.slo_p95_ms) == ("strict-slo", 50.0)
    assert found.knobs == ("max_batch_size=1,2,4", "instances=1,2,3", "max_queue_delay_us=100,500")


def test_the_bounds_of_the_automatic_search_are_the_grid(tmp_path):
    most = ("run_config_search_max_instance_count: 2", "run_config_search_max_model_batch_size: 10")
    text = "\n".join(("profile_models: [a]", *most))
    assert options(tmp_path, text).knobs == ("instances=1,2", "max_batch_size=1,2,4,8")


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ("", "triton_launch_mode local: rrl-tune starts no Triton, it tunes the one at localhost:8001"),
        ("objectives: [perf_throughput]", "every configuration that bears the load has its throughput"),
        (
            "concurrency: 1,2\nbatch_sizes: 1",
            "left out, as the load is what the server has: concurrency, batch",
        ),
        (
            "constraints: {gpu_used_memory: {max: 200}}",
            "constraints left out, as rrl-tune keeps limits of latency",
        ),
        ("latency_budget: 30", "latency_budget at most 30 ms: kept as a limit on the p95"),
        (
            "run_config_search_max_concurrency: 8",
            "as the load is what the server has: run_config_search_max_concurrency",
        ),
        (
            "checkpoint_directory: x\ncolour: red",
            "Model Analyzer's own running: checkpoint_directory, colour",
        ),
        ("model_config_parameters: {optimization: {}}", "model_config_parameters left out: optimization"),
        (
            "model_config_parameters: {instance_group: [{kind: KIND_CPU, count: 1}, {kind: KIND_GPU}]}",
            "model_config_parameters left out: instance_group.kind",
        ),
        (
            "model_config_parameters: {max_batch_size: 1}\nrun_config_search_max_instance_count: 2",
            "as model_config_parameters names the values: run_config_search_max_instance_count",
        ),
    ],
)
def test_what_is_not_taken_over_is_said(tmp_path, lines, note):
    notes = read(written(tmp_path, f"profile_models: a\n{lines}\n")).notes
    assert any(note in each for each in notes), notes


def test_what_a_model_has_of_its_own_and_nothing_stands_for_is_said(tmp_path):
    text = "profile_models: {a: {constraint: {perf_latency_p95: {max: 5}}, cpu_only: true}, b: {colour: red}}"
    taken = read(written(tmp_path, text))
    assert taken.values["model"] == "a,b", "what is left out makes no settings differ"
    assert "left out of model a, as nothing here stands for it: constraint, cpu_only" in taken.notes
    assert "left out of model b, as nothing here stands for it: colour" in taken.notes


@pytest.mark.parametrize(
    ("lines", "kept_ms", "left_out"),
    [
        (
            "constraints: {perf_latency_p95: {max: 100}, perf_latency_p99: {max: 20}}",
            20,
            "perf_latency_p95 at most 100 ms: left out, as the limit of perf_latency_p99 is kept",
        ),
        (
            "constraints: {perf_latency_p95: {max: 100}}\nlatency_budget: 30",
            30,
            "perf_latency_p95 at most 100 ms: left out, as the limit of latency_budget is kept",
        ),
        (
            "constraints: {perf_latency_p99: {max: 40}, perf_latency_p95: {max: 30}}",
            30,
            "perf_latency_p99 at most 40 ms: left out, as the limit of perf_latency_p95 is kept",
        ),
    ],
)
def test_of_several_limits_the_strictest_is_kept(tmp_path, lines, kept_ms, left_out):
    taken = read(written(tmp_path, f"profile_models: a\n{lines}\n"))
    assert taken.values["slo_p95_ms"] == kept_ms
    assert left_out in taken.notes


@pytest.mark.parametrize(
    "lines",
    [
        "bls_composing_models: tokenizer,bert",
        "bls_composing_models: [tokenizer]\ncpu_only_composing_models: [tokenizer, bert]",
        "bls_composing_models:\n  tokenizer: {model_config_parameters: {max_batch_size: [1]}}\n  bert:",
    ],
)
def test_the_models_that_one_calls_are_tuned_with_it(tmp_path, lines):
    taken = read(written(tmp_path, f"profile_models: assistant\n{lines}\n"))
    assert TuneOptions(**taken.values).bls_composing_models == "tokenizer,bert"
    of_their_own = "left out of bls_composing_models: the settings of tokenizer; give MODEL.knob with --knobs"
    assert ("model_config_parameters" in lines) == (of_their_own in taken.notes)


def test_of_several_models_none_is_taken_for_the_one_that_calls(tmp_path):
    taken = read(written(tmp_path, "profile_models: [a, b]\nbls_composing_models: c\n"))
    assert TuneOptions(**taken.values).bls_composing_models is None
    assert any("which are of one model; name that with --model" in note for note in taken.notes)


def test_models_with_settings_of_their_own_are_tuned_one_at_a_time(tmp_path):
    text = "profile_models:\n  a: {latency_budget: 30}\n  b: {latency_budget: 40}\n"
    with pytest.raises(
        ValueError, match="different settings, and a run has one: name one of a, b with --model"
    ):
        options(tmp_path, text)
    assert options(tmp_path, text, model="b").slo_p95_ms == 40.0
    with pytest.raises(ValueError, match="has no model 'c'; it profiles a, b"):
        options(tmp_path, text, model="c")
    assert options(tmp_path, "profile_models: [a, b]\nlatency_budget: 30\n").model == "a,b"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- 3\n", "is no configuration of Model Analyzer: it has no profile_models"),
        ("{", "is not a YAML file"),
        ("profile_models: 3\n", "profile_models must name models, got 3"),
        ("profile_models: a\nbls_composing_models: 3\n", "bls_composing_models must name models, got 3"),
        ("profile_models: {a: 3}\n", "the settings of model 'a' must be a mapping, got 3"),
        ("profile_models: a\nconstraints: {perf_latency_p99: 3}\n", "needs a max in ms above 0, got 3"),
        ("profile_models: a\nobjectives: {perf_throughput: x}\n", "objectives must be a list of metrics"),
        ("profile_models: a\nobjectives: {3: 10, 4: x}\n", "objectives must be a list of metrics"),
        (
            "profile_models: a\nmodel_config_parameters: {max_batch_size: [x]}\n",
            "max_batch_size must be a whole number, got 'x'",
        ),
        (
            "profile_models: a\nmodel_config_parameters: {max_batch_size: {start: 1, stop: 1000000}}\n",
            "must be a range of 1 to 64 values",
        ),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(tmp_path, text, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        read(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_metric_that_is_no_text_and_bounds_beyond_all_use_are_read(tmp_path):
    text = "profile_models: a\nobjectives: {3: 10}\nrun_config_search_max_instance_count: 1000000000\n"
    found = read(written(tmp_path, text))
    assert "objective 3: the nearest here is latency" in found.notes
    assert found.values["knobs"][0] == f"instances={','.join(map(str, range(1, 65)))}"


def test_with_a_load_of_its_own_concurrencies_and_throughput_are_taken(tmp_path):
    text = "profile_models: a\nobjectives: [perf_throughput]\n"
    found = read(written(tmp_path, text + "parameters: {concurrency: {start: 1, stop: 4}}\n"), bench=True)
    assert (found.values["objective"], found.values["concurrency"]) == ("throughput", "1,2,3,4")
    assert not any("left out, as the load" in note for note in found.notes)
    found = read(written(tmp_path, text + "run_config_search_max_concurrency: 8\n"), bench=True)
    assert found.values["concurrency"] == "1,2,4,8"
    found = read(written(tmp_path, text), bench=True)
    assert found.values["concurrency"] == "64"
    assert any("no concurrency is named: the load is 64 requests at once" in note for note in found.notes)
    with pytest.raises(ValueError, match="concurrency must be from 1 to 1024"):
        read(written(tmp_path, text + "run_config_search_max_concurrency: 9999\n"), bench=True)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("request_rate: []", "request_rate must have a value at least, got an empty list"),
        ("parameters: {concurrency: []}", "concurrency must have a value at least, got an empty list"),
        ("request_rate: {start: 100, stop: 50}", "request_rate must be a range of 1 to 64 values"),
        ("request_rate: 12.5", "request_rate must be a whole number, got 12.5"),
        ("request_rate: .inf", "request_rate must be a whole number, got inf"),
    ],
)
def test_a_load_of_no_value_or_of_one_that_is_not_whole_is_refused_in_a_sentence(tmp_path, lines, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        read(written(tmp_path, f"profile_models: a\n{lines}\n"), bench=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lines", ["request_rate: 9", "parameters: {request_rate: {start: 3, stop: 9, step: 2}}"]
)
def test_with_a_load_of_its_own_a_rate_is_taken(tmp_path, lines):
    text = f"profile_models: a\nrun_config_search_max_concurrency: 8\n{lines}\n"
    found = read(written(tmp_path, text), bench=True)
    assert found.values["rate"] == 9.0
    assert "concurrency" not in found.values
    assert found.values["objective"] == "latency", "an open loop has one throughput in every configuration"
    assert ("of the rates the largest is taken: 9/s; --rate gives another" in found.notes) == (
        "stop" in lines
    )
    assert "left out, as the load is that of request_rate: run_config_search_max_concurrency" in found.notes
    assert "rate" not in read(written(tmp_path, text)).values


def test_closed_loops_come_before_a_rate(tmp_path):
    text = "profile_models: a\nparameters: {concurrency: 4, batch_sizes: 2}\nrequest_rate: 9\n"
    found = read(written(tmp_path, text), bench=True)
    assert found.values["concurrency"] == "4"
    assert "rate" not in found.values
    assert "left out, as the load is the closed loops of concurrency: request_rate" in found.notes
    assert "left out, as the load is one of rrl-load: parameters.batch_sizes" in found.notes


def test_models_profiled_concurrently_are_tuned_jointly(tmp_path):
    enabled = "run_config_profile_models_concurrently_enable"
    text = f"profile_models: [a, b]\n{enabled}: true\n"
    found = read(written(tmp_path, text))
    assert TuneOptions(**found.values).jointly
    assert not any(enabled in note for note in found.notes)
    found = read(written(tmp_path, text), bench=True)
    assert not TuneOptions(**found.values, bench=True).jointly
    assert f"left out: {enabled}, as a load of the run's own is of one model" in found.notes
    assert not options(tmp_path, text, model="a").jointly
