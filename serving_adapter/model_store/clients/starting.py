"""Starting a store where none runs: one process at a time, and set up as the last one was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator

from serving_adapter import own_process
from serving_adapter.model_store.endpoint import TOKEN_VARIABLE, Endpoint
from serving_adapter.model_store.errors import StoreUnavailable

RETRY_S = 0.01
IDLE_EXIT_S = 60.0  # after which a store ends that a client started
WORKER_VARIABLES_PREFIX = "MALLOC_"  # rrl-serve sets them for its workers, not for the store


@contextlib.contextmanager
def one_starter(endpoint: Endpoint, deadline_s: float) -> Iterator[None]:
    """One process at a time looks for a store and starts one; TimeoutError if another takes too long."""
    with (endpoint.folder / "starting").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TimeoutError("another process has been starting it for too long") from None
                time.sleep(RETRY_S)
        yield


def start_store(endpoint: Endpoint, token: str | None, timeout_s: float) -> bool:
    """Returns when it listens; False if there is one already, which may not listen yet.

    It is set up as the last one that served here, but ends by itself when it had no client for a while.
    """
    command = own_process.command("serving_adapter.model_store.command_line", "serve", "--detach")
    command += ["--folder", str(endpoint.folder), "--idle-exit-s", str(IDLE_EXIT_S)]
    if endpoint.options.exists():
        command += ["--config", str(endpoint.options)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(WORKER_VARIABLES_PREFIX)}
    if token is not None:
        environment[TOKEN_VARIABLE] = token
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StoreUnavailable(f"a model store did not start within {timeout_s:.0f} s") from None
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode and "already" not in reason:
        raise StoreUnavailable(f"no model store could be started: {reason}")
    return not done.returncode
