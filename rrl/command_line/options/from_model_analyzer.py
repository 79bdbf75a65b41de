"""What `--from-model-analyzer` stands for, beside the flags and the YAML of `--config`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rrl.command_line.options import model_analyzer
from serving_adapter.flags.parsing import looked_ahead, switched_ahead
from serving_adapter.sentences import printable


def defaults(arguments: Sequence[str], configured: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the file stands for; what it leaves out is said on standard error.

    `configured`: the values of --config, which flags override. Any of both may name the file, the model and
    --bench.
    """
    path = looked_ahead(arguments, "--from-model-analyzer") or configured.get("from_model_analyzer")
    if path is None:
        return {}
    model = looked_ahead(arguments, "--model", "--deployment") or configured.get("model")
    bench = switched_ahead(arguments, "--bench")
    taken = model_analyzer.read(Path(path), model, configured.get("bench", False) if bench is None else bench)
    for note in taken.notes:
        print(printable(f"{path}: {note}"), file=sys.stderr)
    values = {k: value for k, value in taken.values.items() if not _replaced(k, arguments, configured)}
    if values["objective"] == "throughput" and "concurrency" not in values:
        del values["objective"]  # An open loop has one throughput in every configuration.
    return values


def _replaced(name: str, arguments: Sequence[str], configured: Mapping[str, Any]) -> bool:
    """Whether what was asked for beside the file takes the place of one of its options."""
    if name == "jointly":
        asked = switched_ahead(arguments, "--advise")
        return bool(configured.get("advise", False) if asked is None else asked)
    other = {"concurrency": "rate", "rate": "concurrency"}.get(name)
    return other is not None and (looked_ahead(arguments, f"--{other}") or configured.get(other)) is not None
