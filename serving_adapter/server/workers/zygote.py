"""The zygote: a process that has torch imported and its models built, and forks workers from itself.

A forked worker costs neither torch's import, nor the building of the module (seconds for a scripted
Inception), nor a copy of the weights: they lie in the model store, where the workers of other servers find
them too, and what else the module holds is in pages that fork shares. Forking is safe because the zygote
never starts a thread: it builds with one intra-op thread and never runs the model; a forked probe does
that to learn the outputs. `inter_op_threads` can be set in each new worker for the same reason.

Everything dies with the front: the zygote on end-of-file of its control socket, the workers by signal
when the zygote does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from serving_adapter import messages

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "resume": signal.SIGCONT}
PROBE_SIZES = (3, 5)  # two lengths for variable dimensions, to see which output dimensions follow them


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def fork(child: Callable[[], None]) -> int:
    """Runs `child` in a forked process that ends without running exit handlers; returns its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # No exit handlers: TorchScript's inter-op pool may abort in its destructor.
        os._exit(status)


class Zygote:
    """Builds the model, reports what it takes and gives, then forks a worker for every request to."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: set[int] = set()

    def serve(self) -> None:
        message = messages.receive(self.control)
        if message is None:
            return
        try:
            self.models = [self._build(message | of) for of in message["models"]]
            description = self._probe()
        except Exception as error:  # the front turns it into one sentence for the user
            messages.send(self.control, {"error": str(error) or type(error).__name__})
            return
        messages.send(self.control, {"model": description})
        gc.collect()
        gc.freeze()  # objects built so far are never collected, so their pages stay shared
        signal.signal(signal.SIGCHLD, self._reap)
        while True:
            message, descriptors = messages.receive_with_descriptors(self.control)
            if message is None:
                return
            order = next((order for order in SIGNALS if order in message), None)
            if order is None:
                self._fork_worker(message, descriptors)
            else:
                self._signal(message[order], SIGNALS[order])

    def _build(self, message: dict[str, Any]) -> Any:
        import torch

        from serving_adapter import model_store
        from serving_adapter.models.loading import load_model

        torch.set_num_threads(1)
        self.device = message["device"]
        _check_device(self.device)
        model = load_model(message["reference"], message["options"])
        try:
            model_store.share(model.module, message["reference"])
        except model_store.StoreError as error:
            log.warning("the weights of %s stay in this process: %s", message["reference"], error)
        _give_memory_back()
        return model

    def _probe(self) -> dict[str, Any]:
        """Runs the first model on two examples in a forked child and describes its inputs and outputs."""
        from serving_adapter.server.workers.worker import describe

        ours, theirs = messages.socket_pair()

        def child() -> None:
            ours.close()
            try:
                messages.send(theirs, {"model": describe(self.models[0], PROBE_SIZES)})
            except Exception as error:
                messages.send(theirs, {"error": f"the model failed on an example input: {error}"})

        pid = fork(child)
        theirs.close()
        answer = messages.receive(ours)
        os.waitpid(pid, 0)
        ours.close()
        if answer is None:
            raise ValueError("the model ended its process when it was run on an example input")
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["model"]

    def _fork_worker(self, message: dict[str, Any], descriptors: list[int]) -> None:
        from serving_adapter.server.workers.worker import work

        channel, input_fd, output_fd = descriptors

        def child() -> None:
            self.control.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides when a worker ends
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            work(self.models, socket.socket(fileno=channel), input_fd, output_fd, self.device, message)

        self.children.add(fork(child))
        for descriptor in descriptors:
            os.close(descriptor)

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        # Only a child not reaped yet: its pid cannot have been given to another process.
        if pid in self.children:
            with contextlib.suppress(ProcessLookupError):  # reaped in this instant
                os.kill(pid, signum)

    def _reap(self, signum: int, frame: FrameType | None) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.children.discard(pid)


def _give_memory_back() -> None:
    """Of weights that lie in the store now; the allocator is set to keep what is freed (worker_pool.py)."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _check_device(device: str) -> None:
    """ValueError if models cannot run there; asks NVML, since CUDA itself does not survive a fork."""
    import torch

    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    count = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        raise ValueError(
            f"--device {device} is not there: torch {torch.__version__} sees {count} CUDA devices; "
            "use --device cpu, or install a CUDA build of torch"
        )


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are the front's to handle
        signal.signal(signum, signal.SIG_IGN)
    die_with_parent()
    Zygote(socket.socket(fileno=int(sys.argv[1]))).serve()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
