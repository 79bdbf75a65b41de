"""An agent beside a server leaves the cores to the server."""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits


def use_one_thread() -> None:
    """From now on, in this process. Call it once the agent is there: only some agents bring torch."""
    threadpool_limits(1)  # NumPy's
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
