"""Runs a test's function in a process of its own, where threads and exit codes may be as they like."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHILD = """
import importlib, json, os, sys, traceback
try:
    sys.path.insert(0, sys.argv[1])
    function = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
    print(json.dumps(function(*json.loads(sys.argv[4]))), flush=True)
except BaseException:
    traceback.print_exc()
    os._exit(1)
os._exit(0)  # torch's inter-op pool may abort in its destructor
"""


@pytest.fixture
def apart() -> Callable[..., Any]:
    """Calls a module-level function, JSON in and JSON out, in a fresh interpreter; warnings are errors."""

    def run(function: Callable[..., Any], *arguments: object) -> Any:
        file = Path(inspect.getfile(function))
        command = [sys.executable, "-W", "error", "-c", CHILD, str(file.parent), file.stem, function.__name__]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, json.dumps(arguments)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
