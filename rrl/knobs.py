"""The knobs that a server may have: how every page, picture and log names them.

| knob | short | label | Triton ModelConfig field |
|---|---|---|---|
| `instances` | instances | instances | `instance_group[0].count` |
| `intra_op_threads` | intra | intra-op threads | `parameters.INTRA_OP_THREAD_COUNT` |
| `inter_op_threads` | inter | inter-op threads | `parameters.INTER_OP_THREAD_COUNT` |
| `max_batch_size` | batch | max batch size | `max_batch_size` |
| `max_queue_delay_us` | delay | queue delay (ms) | `dynamic_batching.max_queue_delay_microseconds` |
| `nodes_per_unit` | nodes/unit | nodes per unit | `parameters.CLUSTER_NODES_PER_UNIT` |

A serving unit is a group of workers on different nodes that serve one batch together. `nodes_per_unit` is how
many there are in it, 1 where it is not given (SERF, SC 2016, section II: inter-node parallelism).

A target may have knobs of its own. They are named as the target names them. Where several models are tuned
together, a knob is named with its model, `resnet.instances` (`rrl.joint`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class KnobWords(NamedTuple):
    """What a knob is called."""

    short: str  # in a line of a log
    label: str  # beside an axis, over a column
    phrase: str  # with its value, in a list of values
    unit: str  # of the value as people read it; "" for a count
    per_unit: int  # of the knob's own unit in one of those
    triton_field: str  # of a Triton ModelConfig


KNOBS: dict[str, KnobWords] = {
    "instances": KnobWords("instances", "instances", "{} inst.", "", 1, "instance_group[0].count"),
    "intra_op_threads": KnobWords(
        "intra", "intra-op threads", "{} intra", "", 1, "parameters.INTRA_OP_THREAD_COUNT"
    ),
    "inter_op_threads": KnobWords(
        "inter", "inter-op threads", "{} inter", "", 1, "parameters.INTER_OP_THREAD_COUNT"
    ),
    "max_batch_size": KnobWords("batch", "max batch size", "batch {}", "", 1, "max_batch_size"),
    "max_queue_delay_us": KnobWords(
        "delay",
        "queue delay (ms)",
        "delay {} ms",
        "ms",
        1000,
        "dynamic_batching.max_queue_delay_microseconds",
    ),
    "nodes_per_unit": KnobWords(
        "nodes/unit", "nodes per unit", "{} nodes/unit", "", 1, "parameters.CLUSTER_NODES_PER_UNIT"
    ),
}

THREAD_KNOBS = ("instances", "intra_op_threads", "inter_op_threads", "nodes_per_unit")
"""Their product is the number of threads that a configuration puts to work, on all nodes of its units."""
MEMORY_KNOBS = ("instances", "max_batch_size")
"""The more of these, the more memory a configuration needs. What the others need is not known."""


def model_and_knob(name: str) -> tuple[str, str]:
    """`resnet.instances` as the model and its knob; the model is empty where one model alone is tuned."""
    model, _, knob = name.rpartition(".")
    return model, knob


def threads_of(configuration: Mapping[str, int]) -> int:
    """The threads that a configuration puts to work: of several models, those of all together."""
    threads: dict[str, list[int]] = {}
    for name, value in configuration.items():
        model, knob = model_and_knob(name)
        threads.setdefault(model, []).append(value if knob in THREAD_KNOBS else 1)
    return sum(map(math.prod, threads.values())) if threads else 1


def words_of(name: str) -> KnobWords:
    """The words of a knob; one that is not in the table is called by its name, its label without `_`."""
    model, knob = model_and_knob(name)
    if model and knob in KNOBS:
        known = KNOBS[knob]
        short, label = (f"{model} {text}" for text in (known.short, known.label))
        phrase = f"{_unformatted(model)} {known.phrase}"
        return known._replace(short=short, label=label, phrase=phrase)
    if name in KNOBS:
        return KNOBS[name]
    label = " ".join(filter(None, (model, knob.replace("_", " "))))
    return KnobWords(name, label, _unformatted(name) + " {}", "", 1, "")


def _unformatted(name: str) -> str:
    """The name in a text that is formatted: a model may be called anything, with braces, too."""
    return name.replace("{", "{{").replace("}", "}}")


def shown(name: str, value: int) -> str:
    """A knob's value as people read it, without its unit: a delay of 2,000 µs is `2`."""
    return f"{value / per_unit:g}" if (per_unit := words_of(name).per_unit) > 1 else str(value)


def in_words(configuration: Mapping[str, int], tuned: Sequence[str] | None = None) -> str:
    """A configuration in a few words, all of it or the `tuned` knobs: `2 inst. · 1 intra · delay 2 ms`."""
    return " · ".join(
        words_of(name).phrase.format(shown(name, value))
        for name, value in configuration.items()
        if tuned is None or name in tuned
    )


def change_in_words(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """The knobs that a change of configuration moves: `instances 1 -> 2, batch 1 -> 4`."""
    return ", ".join(
        f"{words_of(name).short} {_or_unknown(name, before.get(name))} -> {shown(name, value)}{_unit(name)}"
        for name, value in after.items()
        if before.get(name) != value
    )


def _or_unknown(name: str, value: int | None) -> str:
    return "?" if value is None else shown(name, value)


def _unit(name: str) -> str:
    return f" {unit}" if (unit := words_of(name).unit) else ""
