"""`summary.json`: what a run found and kept, for scripts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rrl.records import Header
from rrl.views import capacity_found, tradeoff
from rrl.views.summary import RunSummary, Standing
from serving_adapter.whole_files import written_whole

FILE_NAME = "summary.json"


def write(path: Path, header: Header, summary: RunSummary, ended: bool, measured: tradeoff.Tradeoff) -> None:
    """Writes the file whole. `ended` is True if what is kept is in force."""
    with written_whole(path) as file:
        found = document(header, summary, ended) | {"pareto_front": tradeoff.to_json(measured)}
        borne = capacity_found.read(path.parent)
        if borne is not None:
            found["capacity"] = borne.to_json()
        file.write((json.dumps(found, indent=2) + "\n").encode())


def document(header: Header, summary: RunSummary, ended: bool) -> dict[str, Any]:
    """The summary as JSON has it; what is not known is null."""
    gain = summary.turns if summary.validated else summary.expected
    return {
        "model": header.model,
        "target": header.target,
        "objective": header.objective,
        "slo_p95_ms": header.slo_p95_ms,
        "agent": header.agent,
        "found": header.found,
        "left": summary.kept,
        "why_left": summary.why_kept,
        "in_force": ended,
        "found_better": summary.found_better,
        "validated": summary.validated,
        "times_lower": _known(summary.gain),
        "times_lower_interval": [_known(gain.low), _known(gain.high)],
        "start": _standing(summary.start),
        "best": _standing(summary.best),
        "exploration": {name: _known(value) for name, value in summary.exploration._asdict().items()},
        "decision_ms": _known(summary.decision_ms),
    }


def _standing(standing: Standing) -> dict[str, Any]:
    return {name: _known(value) for name, value in vars(standing).items()}


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
