"""The YAML of Triton's Model Analyzer as options of `rrl-tune`: what is taken over, and what is left out.

Model Analyzer sends a load of its own to configurations in turn. Here the load is what the server has, so
concurrencies and batch sizes of clients mean nothing. What it says of the models, of the values to search
and of latency limits does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

GRPC_ENDPOINT, METRICS_URL = "localhost:8001", "http://localhost:8002/metrics"  # where none is given
INSTANCES, BATCH_SIZES = (1, 5), (1, 128)  # of its automatic search
MAX_VALUES = 64  # of a knob

LIMITS = ("perf_latency_p95", "perf_latency_p99", "perf_latency_p90", "perf_latency_avg")
OF_CLIENTS = ("concurrency", "request_rate", "batch_sizes", "parameters", "perf_analyzer_flags")
OF_COMPOSING = ("bls_composing_models", "cpu_only_composing_models", "composing_models")
SEARCH = {
    "instances": ("run_config_search_min_instance_count", "run_config_search_max_instance_count"),
    "max_batch_size": ("run_config_search_min_model_batch_size", "run_config_search_max_model_batch_size"),
}
USED = (
    *("profile_models", "triton_grpc_endpoint", "triton_metrics_url", "triton_launch_mode"),
    *("objectives", "constraints", "latency_budget", "min_throughput", "model_config_parameters"),
    *(name for pair in SEARCH.values() for name in pair),
)


class Taken(NamedTuple):
    """What a file gives `rrl-tune`."""

    values: dict[str, Any]  # options by name
    notes: tuple[str, ...]  # a sentence each, for the user


def read(path: Path, model: str | None = None) -> Taken:
    """The options that the file stands for; those of `model`, where it names several.

    ValueError, in one sentence, where it cannot be one of Model Analyzer's, or gives its models different
    settings and none is named.
    """
    document = _document(path)
    models = _models(path, document)
    if model is not None:
        if model not in models:
            raise ValueError(f"{path} has no model {model!r}; it profiles {', '.join(models)}")
        models = {model: models[model]}
    of_each = [_of_model({**document, **settings}) for settings in models.values()]
    if any(one != of_each[0] for one in of_each):
        raise ValueError(
            f"{path} gives its models different settings, and a run has one: name one of {', '.join(models)} "
            "with --model"
        )
    values, notes = of_each[0].values, list(of_each[0].notes)
    values["model"] = ",".join(models)
    values["target"] = str(document.get("triton_grpc_endpoint", GRPC_ENDPOINT))
    values["metrics_url"] = _url(str(document.get("triton_metrics_url", METRICS_URL)))
    mode = document.get("triton_launch_mode", "local")
    if mode != "remote":
        notes.insert(
            0,
            f"triton_launch_mode {mode}: rrl-tune starts no Triton, it tunes the one at {values['target']}; "
            "start it with --model-control-mode=explicit",
        )
    left = sorted(set(document) - set(USED) - set(OF_CLIENTS) - set(OF_COMPOSING))
    if left:
        notes.append(f"left out, as they are of Model Analyzer's own running: {', '.join(left)}")
    return Taken(values, tuple(notes))


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not a YAML file: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(document, dict) or "profile_models" not in document:
        raise ValueError(f"{path} is no configuration of Model Analyzer: it has no profile_models")
    return {str(key): value for key, value in document.items()}


def _models(path: Path, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each model by its name."""
    given = document["profile_models"]
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
    if isinstance(given, list):
        entries = [entry if isinstance(entry, dict) else {str(entry): None} for entry in given]
        given = {name: settings for entry in entries for name, settings in entry.items()}
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{path}: profile_models must name models, got {given!r}")
    for name, settings in given.items():
        if settings is not None and not isinstance(settings, dict):
            raise ValueError(f"{path}: the settings of model {name!r} must be a mapping, got {settings!r}")
    return {str(name): dict(settings or {}) for name, settings in given.items()}


def _of_model(settings: Mapping[str, Any]) -> Taken:
    """The options that the settings of one model stand for."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    limit_ms, told = _limit(settings)
    notes += told
    if limit_ms is not None:
        values["slo_p95_ms"] = limit_ms
    values["objective"], told = _objective(settings, limit_ms)
    notes += told
    knobs, told = _knobs(settings)
    notes += told
    if knobs:
        values["knobs"] = tuple(f"{name}={','.join(map(str, found))}" for name, found in knobs.items())
    of_clients = [name for name in OF_CLIENTS if name in settings]
    if of_clients:
        notes.append(f"left out, as the load is what the server has: {', '.join(of_clients)}")
    composing = [name for name in OF_COMPOSING if name in settings]
    if composing:
        notes.append(f"left out: {', '.join(composing)}; tune these models by naming them with --model")
    return Taken(values, tuple(notes))


def _limit(settings: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """The limit on latency in ms, if there is one."""
    constraints = settings.get("constraints") or {}
    notes = []
    if not isinstance(constraints, Mapping):
        raise ValueError(f"constraints must be a mapping of metrics, got {constraints!r}")
    limits = {name: constraints[name] for name in LIMITS if name in constraints}
    if "latency_budget" in settings:
        limits.setdefault("perf_latency_p99", {"max": settings["latency_budget"]})
    others = [name for name in constraints if name not in LIMITS]
    if "min_throughput" in settings:
        others.append("min_throughput")
    if others:
        notes.append(f"constraints left out, as rrl-tune keeps limits of latency: {', '.join(others)}")
    for name, given in limits.items():
        most = given.get("max") if isinstance(given, Mapping) else None
        if not isinstance(most, int | float) or isinstance(most, bool) or most <= 0:
            raise ValueError(f"the constraint {name} needs a max in ms above 0, got {given!r}")
        if name != "perf_latency_p95":
            notes.append(f"{name} at most {most:g} ms: kept as a limit on the p95")
        return float(most), notes
    return None, notes


def _objective(settings: Mapping[str, Any], limit_ms: float | None) -> tuple[str, list[str]]:
    """The objective of ours that comes nearest to the heaviest of theirs."""
    given = settings.get("objectives") or ["perf_throughput"]
    if isinstance(given, str):
        given = [given]
    weights = dict(given) if isinstance(given, Mapping) else dict.fromkeys(map(str, given), 1)
    if not all(isinstance(weight, int | float) for weight in weights.values()):
        raise ValueError(f"objectives must be a list of metrics, or their weights, got {given!r}")
    name = max(weights, key=lambda each: weights[each])
    notes = []
    if len(weights) > 1:
        notes.append(f"of the objectives the heaviest is taken: {name}")
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


def _knobs(settings: Mapping[str, Any]) -> tuple[dict[str, list[int]], list[str]]:
    """The values to search, by knob."""
    given = settings.get("model_config_parameters")
    if given is not None:
        return _of_parameters(given)
    if not any(name in settings for pair in SEARCH.values() for name in pair):
        return {}, []
    low, high = (
        _whole(settings.get(name, default), name)
        for name, default in zip(SEARCH["instances"], INSTANCES, strict=True)
    )
    least, most = (
        _whole(settings.get(name, default), name)
        for name, default in zip(SEARCH["max_batch_size"], BATCH_SIZES, strict=True)
    )
    if low > high or least > most:
        raise ValueError("a run_config_search_min_... is above its run_config_search_max_...")
    powers = [1 << k for k in range(32) if least <= 1 << k <= most]
    knobs = {"instances": list(range(low, high + 1)), "max_batch_size": powers or [least]}
    return {name: found[:MAX_VALUES] for name, found in knobs.items()}, []


def _of_parameters(given: Any) -> tuple[dict[str, list[int]], list[str]]:
    knobs: dict[str, set[int]] = {}
    left: list[str] = []
    if not isinstance(given, Mapping):
        raise ValueError(f"model_config_parameters must be a mapping, got {given!r}")

    def take(knob: str, value: Any, name: str) -> None:
        knobs.setdefault(knob, set()).update(_values(value, name))

    for name, value in given.items():
        if name == "max_batch_size":
            take("max_batch_size", value, name)
        elif name == "instance_group":
            for group in _mappings(value):
                if "count" in group:
                    take("instances", group["count"], f"{name}.count")
        elif name == "dynamic_batching":
            for batching in _mappings(value):
                for field, found in batching.items():
                    if field == "max_queue_delay_microseconds":
                        take("max_queue_delay_us", found, field)
                    else:
                        left.append(f"{name}.{field}")
        else:
            left.append(str(name))
    found = {name: sorted(values)[:MAX_VALUES] for name, values in knobs.items()}
    notes = [f"model_config_parameters left out: {', '.join(left)}"] if left else []
    return found, notes


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    """The mappings in a value, however deep the lists around them are."""
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _mappings(each)


def _values(value: Any, name: str) -> list[int]:
    """A number, a list of them, `1,2,4`, or a range of start, stop and step."""
    if isinstance(value, Mapping):
        start, stop = _whole(value.get("start"), name), _whole(value.get("stop"), name)
        step = _whole(value.get("step", 1), name)
        if step < 1 or (stop - start) // step >= MAX_VALUES:
            raise ValueError(f"{name} must be a range of at most {MAX_VALUES} values, got {dict(value)}")
        return list(range(start, stop + 1, step))
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list):
        return [_whole(each, name) for each in value]
    return [_whole(value, name)]


def _whole(value: Any, name: str) -> int:
    try:
        number = int(value) if not isinstance(value, bool) else -1
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= 1_000_000_000:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return number


def _url(text: str) -> str:
    return text if "://" in text else f"http://{text}"
