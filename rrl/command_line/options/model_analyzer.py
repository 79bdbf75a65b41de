"""The YAML of Triton's Model Analyzer as options of `rrl-tune`: what is taken over, and what is left out.

Model Analyzer sends a load of its own to configurations in turn. Here the load is what the server has, so
concurrencies and rates of clients mean nothing, unless rrl-tune brings a load, too (`--bench`). What the file
says of the models, of the values to search and of latency limits is taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rrl.command_line.options.model_analyzer_search import SEARCH, SEARCH_OF_LOOPS, knobs_of, load_of
from serving_adapter.yaml_text import yaml_file

GRPC_ENDPOINT, METRICS_URL = "localhost:8001", "http://localhost:8002/metrics"  # where none is given

LIMITS = ("perf_latency_p95", "perf_latency_p99", "perf_latency_p90", "perf_latency_avg")
OF_CLIENTS = ("concurrency", "request_rate", "batch_sizes", "parameters", "perf_analyzer_flags")
OF_COMPOSING = ("bls_composing_models", "cpu_only_composing_models")
OF_LOAD = ("concurrency", "request_rate", "parameters")  # with --bench
JOINTLY = "run_config_profile_models_concurrently_enable"
OF_DOCUMENT = (
    *("profile_models", "triton_grpc_endpoint", "triton_metrics_url", "triton_launch_mode"),
    JOINTLY,
)
OF_MODEL = (
    *("objectives", "constraints", "latency_budget", "min_throughput", "model_config_parameters"),
    *(name for pair in SEARCH.values() for name in pair),
    *(*SEARCH_OF_LOOPS, *OF_CLIENTS, *OF_COMPOSING),
)


class Taken(NamedTuple):
    """What a file gives `rrl-tune`."""

    values: dict[str, Any]  # options by name
    notes: tuple[str, ...]  # a sentence each, for the user


def read(path: Path, model: str | None = None, bench: bool = False) -> Taken:
    """The options that the file stands for; those of `model`, where it names several.

    `bench`: the run brings a load of its own, so that the file's concurrencies or its rate are that load.

    ValueError, in one sentence, where it cannot be one of Model Analyzer's, or gives its models different
    settings and none is named.
    """
    document = _document(path)
    models = _models(path, document)
    if model is not None:
        if model not in models:
            raise ValueError(f"{path} has no model {model!r}; it profiles {', '.join(models)}")
        models = {model: models[model]}
    of_each = [_of_model({**document, **settings}, bench) for settings in models.values()]
    if any(one.values != of_each[0].values for one in of_each):
        raise ValueError(
            f"{path} gives its models different settings, and a run has one: name one of {', '.join(models)} "
            "with --model"
        )
    values = of_each[0].values
    notes = list(dict.fromkeys(note for one in of_each for note in one.notes))
    values["model"] = ",".join(models)
    if len(models) > 1 and values.pop("bls_composing_models", None):
        notes.append(
            f"left out: {' and '.join(OF_COMPOSING)}, which are of one model; name that with --model"
        )
    if document.get(JOINTLY):
        if bench:
            notes.append(f"left out: {JOINTLY}, as a load of the run's own is of one model")
        elif len(models) > 1:
            values["jointly"] = True
    values["target"] = str(document.get("triton_grpc_endpoint", GRPC_ENDPOINT))
    values["metrics_url"] = _url(str(document.get("triton_metrics_url", METRICS_URL)))
    mode = document.get("triton_launch_mode", "local")
    if mode != "remote":
        notes.insert(
            0,
            f"triton_launch_mode {mode}: rrl-tune starts no Triton, it tunes the one at {values['target']}; "
            "start it with --model-control-mode=explicit",
        )
    left = sorted(set(document) - set(OF_DOCUMENT) - set(OF_MODEL))
    if left:
        notes.append(f"left out, as they are of Model Analyzer's own running: {', '.join(left)}")
    for name, settings in models.items():
        if left := sorted(map(str, set(settings) - set(OF_MODEL))):
            notes.append(f"left out of model {name}, as nothing here stands for it: {', '.join(left)}")
    return Taken(values, tuple(notes))


def _document(path: Path) -> dict[str, Any]:
    document = yaml_file(path, "configuration of Model Analyzer")
    if not isinstance(document, dict) or "profile_models" not in document:
        raise ValueError(f"{path} is no configuration of Model Analyzer: it has no profile_models")
    return {str(key): value for key, value in document.items()}


def _models(path: Path, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each model by its name."""
    given = _settings_by_name(document["profile_models"], f"{path}: profile_models")
    if not given:
        raise ValueError(f"{path}: profile_models must name models, got {document['profile_models']!r}")
    for name, settings in given.items():
        if settings is not None and not isinstance(settings, dict):
            raise ValueError(f"{path}: the settings of model {name!r} must be a mapping, got {settings!r}")
    return {str(name): dict(settings or {}) for name, settings in given.items()}


def _of_model(settings: Mapping[str, Any], bench: bool) -> Taken:
    """The options that the settings of one model stand for."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    limit_ms, told = _limit(settings)
    notes += told
    if limit_ms is not None:
        values["slo_p95_ms"] = limit_ms
    if bench:
        load, told = load_of(settings)
        notes += told
        values |= load
    values["objective"], told = _objective(settings, limit_ms, "concurrency" in values)
    notes += told
    knobs, told = knobs_of(settings)
    notes += told
    if knobs:
        values["knobs"] = tuple(f"{name}={','.join(map(str, found))}" for name, found in knobs.items())
    names = OF_CLIENTS if bench else (*OF_CLIENTS, *SEARCH_OF_LOOPS)
    of_clients = [name for name in names if name in settings and not (bench and name in OF_LOAD)]
    if of_clients:
        why = "as the load is one of rrl-load" if bench else "as the load is what the server has"
        notes.append(f"left out, {why}: {', '.join(of_clients)}")
    composing, told = _composing(settings)
    notes += told
    if composing:
        values["bls_composing_models"] = ",".join(composing)
    return Taken(values, tuple(notes))


def _composing(settings: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The models that the profiled one calls, or is made of, as far as the file names them."""
    found: dict[str, None] = {}
    notes = []
    for key in OF_COMPOSING:
        named = _settings_by_name(settings.get(key) or [], key)
        found |= dict.fromkeys(named)
        own = [name for name, each in named.items() if each]
        if own:
            notes.append(f"left out of {key}: the settings of {', '.join(own)}; give MODEL.knob with --knobs")
    return list(found), notes


def _settings_by_name(given: Any, where: str) -> dict[str, Any]:
    """Models by name, of `a,b`, a list of names and mappings, or a mapping; ValueError of anything else."""
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
    if isinstance(given, list):
        entries = [entry if isinstance(entry, dict) else {str(entry): None} for entry in given]
        given = {name: settings for entry in entries for name, settings in entry.items()}
    if not isinstance(given, dict):
        raise ValueError(f"{where} must name models, got {given!r}")
    return given


def _limit(settings: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """The strictest limit on latency in ms, if there is one."""
    constraints = settings.get("constraints") or {}
    notes = []
    if not isinstance(constraints, Mapping):
        raise ValueError(f"constraints must be a mapping of metrics, got {constraints!r}")
    given = {name: constraints[name] for name in LIMITS if name in constraints}
    if "latency_budget" in settings:
        given["latency_budget"] = {"max": settings["latency_budget"]}
    others = [name for name in constraints if name not in LIMITS]
    if "min_throughput" in settings:
        others.append("min_throughput")
    if others:
        notes.append(f"constraints left out, as rrl-tune keeps limits of latency: {', '.join(others)}")
    if not given:
        return None, notes
    limits_ms = {name: _most_ms(name, constraint) for name, constraint in given.items()}
    strictest = min(limits_ms, key=lambda name: limits_ms[name])
    for name, most_ms in limits_ms.items():
        if name != strictest:
            notes.append(f"{name} at most {most_ms:g} ms: left out, as the limit of {strictest} is kept")
        elif name != "perf_latency_p95":
            notes.append(f"{name} at most {most_ms:g} ms: kept as a limit on the p95")
    return limits_ms[strictest], notes


def _most_ms(name: str, constraint: Any) -> float:
    most = constraint.get("max") if isinstance(constraint, Mapping) else None
    if not isinstance(most, int | float) or isinstance(most, bool) or most <= 0:
        raise ValueError(f"the constraint {name} needs a max in ms above 0, got {constraint!r}")
    return float(most)


def _objective(
    settings: Mapping[str, Any], limit_ms: float | None, closed_loop: bool
) -> tuple[str, list[str]]:
    """The objective of ours that comes nearest to the heaviest of theirs."""
    given = settings.get("objectives") or ["perf_throughput"]
    if isinstance(given, str):
        given = [given]
    weighted = given if isinstance(given, Mapping) else dict.fromkeys(map(str, given), 1)
    weights = {str(metric): weight for metric, weight in weighted.items()}
    if not all(isinstance(weight, int | float) for weight in weights.values()):
        raise ValueError(f"objectives must be a list of metrics, or their weights, got {given!r}")
    name = max(weights, key=lambda each: weights[each])
    notes = []
    if len(weights) > 1:
        notes.append(f"of the objectives the heaviest is taken: {name}")
    if name == "perf_throughput" and closed_loop:
        return "throughput", notes
    if name == "perf_throughput":
        notes.append(
            "objective perf_throughput: every configuration that bears the load has its throughput, so the "
            "one with the lowest mean latency is sought"
        )
        return "latency", notes
    if name.startswith("perf_latency"):
        if name == "perf_latency_avg" or limit_ms is None:
            if name != "perf_latency_avg":
                notes.append(f"objective {name} without a limit: the mean latency is minimised")
            return "latency", notes
        return "strict-slo", notes
    taken = "least-resources" if limit_ms is not None else "latency"
    notes.append(f"objective {name}: the nearest here is {taken}")
    return taken, notes


def _url(text: str) -> str:
    return text if "://" in text else f"http://{text}"
