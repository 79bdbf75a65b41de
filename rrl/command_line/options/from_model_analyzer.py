"""What `--from-model-analyzer` stands for, beside the flags and the YAML of `--config`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rrl.command_line.options import model_analyzer
from serving_adapter.options import looked_ahead, printable, switched_ahead


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
    return taken.values
