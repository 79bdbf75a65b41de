"""Prometheus text as servers and the collectors before them write it: the samples of one model, by name.

`prometheus_client` has a parser of each dialect. One stumbles over exemplars, the other over everything that
is not strictly OpenMetrics, and both over a not-a-number that nobody asks for. Tests hold this one against
the former.

| in the text | is |
|---|---|
| a time stamp or an exemplar behind the value | left out |
| `NAME_total` of a counter `NAME`, as OpenMetrics writes it | the same counter |
| `NAME_created` | another name, which nobody asks for |
| one series twice, a bucket below the one before it | refused |
| a value that is not a finite number from 0 up | refused once somebody asks for it |
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import pairwise

from serving_adapter.latency_histogram import CumulativeHistogram

_TIMESTAMP = r"(?:[ \t]+[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)?"
_EXEMPLAR = r"(?:[ \t]+#[ \t]*\{.*)?"
_LABELS = r'\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\}[ \t]*'
SAMPLE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:{_LABELS}|[ \t])([^\s#{{}}]+){_TIMESTAMP}{_EXEMPLAR}[ \t]*"
)
# None begins within a name, or a long name without a value would be looked at from each of its letters.
_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(
    r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:inf|infinity)", re.IGNORECASE
)
# A sample's labels up to `model`, as servers write them: without spaces and escapes. Others are read in full.
_PLAIN_MODEL = re.compile(r'[a-zA-Z0-9_:]+\{(?:[a-zA-Z0-9_]+="[^"\\]*",)*model="([^"\\]*)"[,}]')
_OF_COLLECTORS = "exported_model"  # what they make of a server's label, as they have a `model` of their own
_TOTAL = "_total"
_MAX_CHARACTERS = 4 << 20  # of one model's series and the process's, which take a second at most
_PER_LINE = 64  # what a line takes beside its characters, in characters
_MOST = 1e30  # nothing that is counted or measured comes near, and the sum of many such is a number, too


class ModelPage:
    """The samples of one model, and those of the whole process."""

    def __init__(
        self, text: str, model: str, prefixes: tuple[str, ...], of_models: tuple[str, ...], left_out: str
    ) -> None:
        """Reads lines with these prefixes; of `of_models` only what is labelled with the model.

        Names that contain `left_out` are none of its. Other models' series are hardly looked at: a page may
        have very many.
        """
        self.series: dict[str, list[tuple[dict[str, str], str]]] = defaultdict(list)
        self.models: set[str] = set()
        self.renamed_models: set[str] = set()
        seen: set[tuple[str, ...]] = set()
        characters = 0
        for line in text.split("\n"):
            line = line.strip()
            if not line.startswith(prefixes):
                continue
            plain = _PLAIN_MODEL.match(line)
            if plain is not None and plain[1] != model and _OF_COLLECTORS not in line:
                self.models.add(plain[1])
                continue
            characters += len(line) + _PER_LINE
            if characters > _MAX_CHARACTERS:
                raise ValueError(
                    f"the metrics page has more than {_MAX_CHARACTERS >> 20} MiB of series beside those of "
                    "other models; give the page of the server itself"
                )
            name, labels, value = sample(line)
            for key, models in (("model", self.models), (_OF_COLLECTORS, self.renamed_models)):
                if key in labels:
                    models.add(labels[key])
            if labels.get("model", model) != model or left_out in name:
                continue
            if "model" not in labels and name.startswith(of_models):
                continue
            name = self._base(name)
            identity = (name, *(text for pair in sorted(labels.items()) for text in pair))
            if identity in seen:
                raise ValueError(f"the metrics page is malformed: it has the series {line[:80]!r} twice")
            seen.add(identity)
            self.series[name].append((labels, value))

    def __contains__(self, name: str) -> bool:
        return name in self.series

    def sum(self, name: str) -> float:
        """Summed over the model's versions, and whatever else tells series apart; 0 where there are none."""
        return math.fsum(number(value, name) for _, value in self.series.get(name, ()))

    def count(self, name: str) -> int:
        return round(self.sum(name))

    def gauge(self, name: str) -> float | None:
        """None where the page does not tell: one that is not a number is not told."""
        values = self.told(name)
        return math.fsum(values) if values else None

    def mean(self, name: str) -> float | None:
        values = self.told(name)
        return math.fsum(values) / len(values) if values else None

    def told(self, name: str) -> list[float]:
        """The value of each series, of those that are a number."""
        values = [value for _, value in self.series.get(name, ()) if value.lower().lstrip("+-") != "nan"]
        return [number(value, name) for value in values]

    def histogram(self, name: str) -> CumulativeHistogram | None:
        counts: dict[float, int] = defaultdict(int)
        for labels, value in self.series.get(f"{name}_bucket", ()):
            counts[_bound(labels.get("le", ""), name)] += round(number(value, name))
        if not counts:
            return None
        bounds_s = tuple(sorted(counts))
        cumulative = tuple(counts[bound] for bound in bounds_s)
        if not math.isinf(bounds_s[-1]):
            raise ValueError(f'the metrics page is malformed: {name} has no bucket le="+Inf"')
        if any(later < earlier for earlier, later in pairwise(cumulative)):
            raise ValueError(f"the metrics page is malformed: the buckets of {name} fall, which must not be")
        return CumulativeHistogram(bounds_s, cumulative, self.sum(f"{name}_sum"))

    def _base(self, name: str) -> str:
        """The name as Triton has it, if a collector has given it OpenMetrics' ending."""
        base = name.removesuffix(_TOTAL)
        return base if base != name and base.startswith(("nv_", "rrl_", "process_")) else name


def sample(line: str) -> tuple[str, dict[str, str], str]:
    """Name, labels and the text of the value; ValueError for a line that is no sample."""
    match = SAMPLE.fullmatch(line)
    if match is None:
        raise ValueError(f"the metrics page is malformed: expected `name{{labels}} value`, got {line[:80]!r}")
    name, labels, value = match.groups()
    return name, _labels(labels, line) if labels else {}, value


def number(text: str, name: str) -> float:
    """A number from 0 up, which all that is counted and measured is; none that is beyond all measure."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 <= value < _MOST:
        raise ValueError(
            f"the metrics page is malformed: {name} must be a number from 0 up, got {text[:80]!r}"
        )
    return value


def _bound(text: str, name: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if math.isnan(value):
        raise ValueError(f"the metrics page is malformed: {name} has a bucket up to {text[:80]!r}")
    return value


def _labels(text: str, line: str) -> dict[str, str]:
    labels = dict(_LABEL.findall(text))
    if _LABEL.sub("", text).strip(" \t,"):
        raise ValueError(f"the metrics page is malformed: the labels of {line[:80]!r} cannot be read")
    if "\\" in text:
        labels = {k: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], v) for k, v in labels.items()}
    return labels
