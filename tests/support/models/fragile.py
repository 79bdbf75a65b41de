"""A model that cannot be configured as one likes, for `rrl-serve` and for Triton's Python backend.

With NO_ROOM_THREADS intra-op threads it fails to load; with DEADLY_THREADS its server is killed meanwhile.
With HANGING_THREADS it is never ready; with JEALOUS_THREADS a new worker kills all others of its zygote.
"""

import errno
import os
import time
from pathlib import Path

import psutil
import torch
from torch import nn

from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec

NO_ROOM_THREADS = 61
DEADLY_THREADS = 62
HANGING_THREADS = 63
JEALOUS_THREADS = 64
WIDTH_VARIABLE = "RRL_TEST_FRAGILE_WIDTH"


class Fragile(nn.Module):
    def forward(self, x):
        if torch.get_num_threads() == NO_ROOM_THREADS:
            raise MemoryError("no room for so many threads")
        if torch.get_num_threads() == DEADLY_THREADS:
            worker_of_zygote_of_front = psutil.Process()
            worker_of_zygote_of_front.parents()[1].kill()
        if torch.get_num_threads() == HANGING_THREADS:
            time.sleep(3600)
        if torch.get_num_threads() == JEALOUS_THREADS:
            for sibling in psutil.Process(os.getppid()).children():
                if sibling.pid != os.getpid():
                    sibling.kill()
        return x


def fragile(no_fork_while: str = "") -> Model:
    """Its threads are those of the inter-op pool too, so that a change of them starts new workers.

    The process that builds it cannot fork while that file is there, as where processes are limited.
    """
    fork = os.fork

    def limited_fork() -> int:
        if no_fork_while and os.path.exists(no_fork_while):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    os.fork = limited_fork
    width = int(os.environ.get(WIDTH_VARIABLE, "16"))
    return Model(Fragile(), (TensorSpec("x", "FP32", (width,)),), ("y",), has_parallel_branches=True)


PYTHON_BACKEND = f"""
import signal


class TritonPythonModel(TritonPythonModel):
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        threads = int(parameters["INTRA_OP_THREAD_COUNT"]["string_value"])
        if threads == {NO_ROOM_THREADS}:
            raise MemoryError("no room for so many threads")
        if threads == {DEADLY_THREADS}:
            os.kill(os.getppid(), signal.SIGKILL)
        super().initialize(args)
"""
"""What a `model.py` of the repository is continued with."""


def never_built(tells: str) -> Model:
    """It makes the file that it is told to, and then does nothing."""
    Path(tells).touch()
    time.sleep(3600)
    raise AssertionError("nobody waits so long")
