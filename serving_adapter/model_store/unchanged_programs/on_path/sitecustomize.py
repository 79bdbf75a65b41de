"""What Python runs when it starts with this folder on its path, before any line of the program.

Whatever goes wrong here, the program runs as it would without the store. A `sitecustomize` of its own,
further down its path, is run as if this one were not there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _run_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    further = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", further)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


with contextlib.suppress(Exception):  # this Python may have another version of the project, or none
    from serving_adapter.model_store.unchanged_programs import interception

    interception.install()
_run_the_next()
