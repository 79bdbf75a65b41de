"""The page of the documentation that helps with an error. `serving_adapter.flags.parsing.fail` names it.

In a clone pages are named from its root. A wheel has them in `rrl/docs`, and they are named by their paths.
"""

from __future__ import annotations

import re
from pathlib import Path

INSTALLED = Path(__file__).resolve().parents[2] / "rrl"

PAGES = (
    (r"\bRay\b|--ray\b|\bray (start|status)\b|\bthe node at\b", "docs/how-to/cluster.md"),
    (r"Model Analyzer|profile_models", "docs/how-to/from-model-analyzer.md"),
    (r"Minari|of the bench|--traces\b|public traces", "docs/how-to/bench-agents.md"),
    (r"\bcontrol[- ]key|--tls|certificate", "docs/how-to/operators-limits.md"),
    (r"--change-window|--max-changes-per-hour|--forbid|--pin\b", "docs/how-to/operators-limits.md"),
    (r"rrl-tune init|options file|YAML|unknown option", "docs/reference/yaml.md"),
    (r"\bagent\b|--agents?\b", "docs/reference/agents.md"),
    (r"\bjournal\b|--resume|--export", "docs/reference/run-folder.md"),
    (r"trace\b|--arrivals|--input-data|--shape", "docs/how-to/serve-your-model.md"),
    (r"parity|coding group|data file|unknown data|default answer", "docs/how-to/late-and-lost-answers.md"),
    (r"machine file|--machine\b|\.npz\b", "docs/how-to/profile-and-pretrain.md"),
    (r"\bstore\b|--remote\b", "docs/how-to/share-weights.md"),
    (r"--model-control-mode|Triton|--target|does not answer", "docs/how-to/tune-a-triton.md"),
    (r"\bknobs?\b", "docs/how-to/operators-limits.md"),
)
"""What an error speaks of, and the page about it. The first that is found counts."""

ALL_FLAGS = "docs/reference/commands.md"


def page_for(message: str) -> str:
    """The page about what a message speaks of; that of all flags where there is none."""
    page = next((page for words, page in PAGES if re.search(words, message)), ALL_FLAGS)
    installed = INSTALLED / page
    return str(installed) if installed.is_file() else page
