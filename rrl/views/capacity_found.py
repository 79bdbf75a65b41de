"""What the searches for the capacity found, before a run of the objective `capacity` and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from rrl.objective import rate_in_words

START, KEPT = "capacity-start", "capacity-left"  # folders of the searches, beside the journal
FILE_NAME = "capacity.json"


class Borne(NamedTuple):
    """What start and configuration kept bear; None where that was not searched."""

    start_per_s: float | None
    kept_per_s: float | None
    slo_p95_ms: float
    confirmed: bool  # by windows that had no part in choosing the answer

    def in_words(self) -> str:
        """`143/s at p95 <= 50 ms; 96/s at the start`."""
        limit = f"at p95 <= {self.slo_p95_ms:g} ms"
        doubt = "" if self.confirmed else ", not confirmed"
        if self.kept_per_s is None:
            assert self.start_per_s is not None  # one of both was searched
            return f"{rate_in_words(self.start_per_s)}/s {limit}, with the start{doubt}"
        start = "" if self.start_per_s is None else f"; {rate_in_words(self.start_per_s)}/s with the start"
        return f"{rate_in_words(self.kept_per_s)}/s {limit}{start}{doubt}"

    def to_json(self) -> dict[str, Any]:
        return {
            "start_per_s": self.start_per_s,
            "left_per_s": self.kept_per_s,
            "slo_p95_ms": self.slo_p95_ms,
            "confirmed": self.confirmed,
        }


def path_of(folder: Path, name: str) -> Path:
    return folder / name / FILE_NAME


def read(folder: Path) -> Borne | None:
    """Of the run in a folder; None where no search ended there, or its file is damaged."""
    found: dict[str, dict[str, Any]] = {}
    for name in (START, KEPT):
        try:
            each = json.loads(path_of(folder, name).read_text(encoding="utf-8"))
            float(each["level"]), float(each["slo_p95_ms"]), bool(each["confirmed"])
            found[name] = each
        except (OSError, ValueError, KeyError, TypeError):
            continue
    if not found:
        return None
    levels = {name: float(each["level"]) for name, each in found.items()}
    return Borne(
        levels.get(START),
        levels.get(KEPT),
        float(next(iter(found.values()))["slo_p95_ms"]),
        all(each["confirmed"] for each in found.values()),
    )
