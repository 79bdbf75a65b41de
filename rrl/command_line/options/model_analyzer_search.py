"""What the YAML of Triton's Model Analyzer has it search: values of knobs, and loads of clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INSTANCES, BATCH_SIZES = (1, 5), (1, 128)  # of its automatic search
MAX_VALUES = 64  # of a knob
SEARCH_OF_LOOPS = ("run_config_search_min_concurrency", "run_config_search_max_concurrency")
CONCURRENCIES = (1, 1024)  # of its automatic search
USUAL_CONCURRENCY = 64  # where none is named: fills 4 instances of batches of 16, the usual grid's largest
SEARCH = {
    "instances": ("run_config_search_min_instance_count", "run_config_search_max_instance_count"),
    "max_batch_size": ("run_config_search_min_model_batch_size", "run_config_search_max_model_batch_size"),
}


def load_of(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The closed loops or the rate that the file names, as options of a run that brings its load.

    Where it names both, it is closed loops. Of several rates it is the largest.
    """
    given = settings.get("parameters") or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"parameters must be a mapping, got {given!r}")
    named = {name: settings.get(name, given.get(name)) for name in ("concurrency", "request_rate")}
    left = [f"parameters.{name}" for name in given if name not in named]
    notes = [f"left out, as the load is one of rrl-load: {', '.join(left)}"] if left else []
    rates = (
        None if named["request_rate"] is None else sorted(set(_values(named["request_rate"], "request_rate")))
    )
    if rates is None or named["concurrency"] is not None:
        if rates is not None:
            notes.append("left out, as the load is the closed loops of concurrency: request_rate")
        levels, told = _concurrencies(settings, named["concurrency"])
        return {"concurrency": ",".join(map(str, levels))}, notes + told
    if bounds := [name for name in SEARCH_OF_LOOPS if name in settings]:
        notes.append(f"left out, as the load is that of request_rate: {', '.join(bounds)}")
    if len(rates) > 1:
        notes.append(f"of the rates the largest is taken: {rates[-1]}/s; --rate gives another")
    return {"rate": float(rates[-1])}, notes


def _concurrencies(settings: Mapping[str, Any], given: Any) -> tuple[list[int], list[str]]:
    """Those given, or the powers of two within the bounds of the automatic search."""
    bounds = [name for name in SEARCH_OF_LOOPS if name in settings]
    if given is not None:
        notes = [f"left out, as concurrency names the values: {', '.join(bounds)}"] if bounds else []
        return sorted(set(_values(given, "concurrency"))), notes
    if not bounds:
        note = f"no concurrency is named: the load is {USUAL_CONCURRENCY} requests at once (--concurrency)"
        return [USUAL_CONCURRENCY], [note]
    low, high = (
        _whole(settings.get(name, default), name)
        for name, default in zip(SEARCH_OF_LOOPS, CONCURRENCIES, strict=True)
    )
    if not 1 <= low <= high <= CONCURRENCIES[1]:
        raise ValueError(
            f"run_config_search_..._concurrency must be from 1 to {CONCURRENCIES[1]}, the least at most the "
            f"largest, got {low} and {high}"
        )
    return [1 << k for k in range(32) if low <= 1 << k <= high] or [low], []


def knobs_of(settings: Mapping[str, Any]) -> tuple[dict[str, list[int]], list[str]]:
    """The values to search, by knob."""
    given = settings.get("model_config_parameters")
    bounds = [name for pair in SEARCH.values() for name in pair if name in settings]
    if given is not None:
        knobs, notes = _of_parameters(given)
        if bounds:
            notes.append(f"left out, as model_config_parameters names the values: {', '.join(bounds)}")
        return knobs, notes
    if not bounds:
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
    knobs = {"instances": list(range(low, high + 1)[:MAX_VALUES]), "max_batch_size": powers or [least]}
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
                for field, found in group.items():
                    if field == "count":
                        take("instances", found, f"{name}.count")
                    else:
                        left.append(f"{name}.{field}")
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
    notes = [f"model_config_parameters left out: {', '.join(dict.fromkeys(left))}"] if left else []
    return found, notes


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    """The mappings in a value, however deep the lists around them are."""
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _mappings(each)


def _values(value: Any, name: str) -> list[int]:
    """One value at least: of a number, a list of them, `1,2,4`, or a range of start, stop and step."""
    if isinstance(value, Mapping):
        start, stop = _whole(value.get("start"), name), _whole(value.get("stop"), name)
        step = _whole(value.get("step", 1), name)
        if step < 1 or not 0 <= (stop - start) // step < MAX_VALUES:
            raise ValueError(f"{name} must be a range of 1 to {MAX_VALUES} values, got {dict(value)}")
        return list(range(start, stop + 1, step))
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list):
        if not value:
            raise ValueError(f"{name} must have a value at least, got an empty list")
        return [_whole(each, name) for each in value]
    return [_whole(value, name)]


def _whole(value: Any, name: str) -> int:
    try:
        number = int(value) if not isinstance(value, bool) else -1
    except (TypeError, ValueError, OverflowError):
        number = -1
    cut = isinstance(value, float) and number != value
    if cut or not 0 <= number <= 1_000_000_000:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return number
