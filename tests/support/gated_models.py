"""A model that is not built before a file is there."""

from __future__ import annotations

import time
from pathlib import Path

from serving_adapter.models.model import Model
from serving_adapter.models.synthetic import noop

POLL_S = 0.01


def gated(gate: str) -> Model:
    while not Path(gate).exists():
        time.sleep(POLL_S)
    return noop()
