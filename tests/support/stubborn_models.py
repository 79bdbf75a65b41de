"""A model whose building takes for ever, for `rrl-serve`."""

import time
from pathlib import Path

from serving_adapter.models.model import Model


def never_built(tells: str) -> Model:
    """It makes the file that it is told to, and then does nothing."""
    Path(tells).touch()
    time.sleep(3600)
    raise AssertionError("nobody waits so long")
