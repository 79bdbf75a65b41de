"""The zygote: a process that has torch imported and its models built, and forks workers from itself.

A forked worker saves three costs:

- torch's import,
- the building of the module, which takes seconds for a scripted Inception,
- a copy of the weights. They lie in the model store, where the workers of other servers find them too.
  What else the module holds is in pages that fork shares.

Forking is safe because the zygote never starts a thread. It builds with one intra-op thread and never runs
the model: a forked probe does that to learn the outputs. For the same reason each new worker can still set
`inter_op_threads`.

Everything dies with the front: the zygote when its control socket reaches its end of file, the workers by
a signal when the zygote dies.
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

from serving_adapter.messages import receive_with_descriptors, socket_pair
from serving_adapter.own_process import end_with_parent
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.messages import (
    SIGNALS,
    BuildError,
    BuildModels,
    Forked,
    ForkWorker,
    ModelDescription,
    ModelReference,
    SignalWorker,
    parse_build_reply,
    parse_zygote_order,
)
from serving_adapter.standard_streams import ERROR, keep_standard_streams
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

PROBE_SIZES = (3, 5)  # two lengths for variable dimensions, to see which output dimensions follow them


def fork(child: Callable[[], None]) -> int:
    """Runs `child` in a forked process that ends without running exit handlers; returns its pid."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the model may have put anything in its place
            stream.flush()
    parent_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        end_with_parent(parent_pid, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        # No exit handlers: TorchScript's inter-op pool may abort in its destructor.
        os._exit(status)


class Zygote:
    """Builds the models, describes the first one, then forks and signals workers as it is told to."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: set[int] = set()
        self.models: list[Any] = []
        self.on_device: list[Any] = []  # the models whose weights the store holds on the device
        self.outputs: tuple[TensorSpec, ...] = ()
        self.device = "cpu"

    def serve(self) -> None:
        order = messages.receive(self.control, BuildModels.from_wire)
        if order is None:
            return
        self.device = order.device
        try:
            from serving_adapter import model_store

            with model_store.patience(order.store_patience_s):
                self.models = [self._build(reference) for reference in order.models]
            description = self._probe()
        except BaseException as error:  # of the user's code; the front turns it into one sentence
            from serving_adapter.models.model import complaint

            messages.send(self.control, BuildError(complaint(error)))
            return
        self.outputs = description.outputs
        messages.send(self.control, description)
        gc.collect()
        gc.freeze()  # objects built so far are never collected, so their pages stay shared
        signal.signal(signal.SIGCHLD, self._reap)
        _warn_of_threads()
        while True:
            try:
                wire, descriptors = receive_with_descriptors(self.control)
            except ValueError as error:  # only orders to fork have descriptors, which can get lost
                messages.send(self.control, Forked(0, f"its order is incomplete: {error}"))
                continue
            if wire is None:
                return
            match parse_zygote_order(wire):
                case ForkWorker() as threads:
                    self._answer_fork(threads, descriptors)
                case SignalWorker(what=what, pid=pid):
                    self._signal(pid, SIGNALS[what])

    def _build(self, reference: ModelReference) -> Any:
        import torch

        from serving_adapter import model_store
        from serving_adapter.models.loading import load_model

        torch.set_num_threads(1)
        _check_device(self.device)
        model = load_model(reference.reference, dict(reference.options))
        try:
            model_store.share(model.module, reference.reference)
        except model_store.StoreError as error:
            log.warning("the weights of %s stay in this process: %s", reference.reference, error)
        if self.device != "cpu":
            self._share_on_device(model, reference)
        _give_memory_back()
        return model

    def _share_on_device(self, model: Any, reference: ModelReference) -> None:
        """Workers open what the store holds there. This process must not use the device, as it forks."""
        from serving_adapter import model_store

        try:
            shared = model_store.share_on_device(model.module, reference.reference, self.device)
        except model_store.StoreError as error:
            name, device = reference.reference, self.device
            log.warning("each worker copies the weights of %s to %s: %s", name, device, error)
        else:
            self.on_device += [] if shared is None else [shared]

    def _probe(self) -> ModelDescription:
        """Runs the first model on two examples in a forked child and describes its inputs and outputs."""
        from serving_adapter.models.model import ModelError, complaint
        from serving_adapter.server.workers.worker import describe

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a factory may have set it so that none is waited for
        ours, theirs = socket_pair()

        def child() -> None:
            ours.close()
            try:
                messages.send(theirs, describe(self.models[0], PROBE_SIZES))
            except BaseException as error:
                messages.send(theirs, BuildError(f"the model failed on an example input: {complaint(error)}"))

        pid = fork(child)
        theirs.close()
        reply = messages.receive(ours, parse_build_reply)
        os.waitpid(pid, 0)
        ours.close()
        if reply is None:
            raise ModelError("the model ended its process when it was run on an example input")
        if isinstance(reply, BuildError):
            raise ModelError(reply.error)
        return reply

    def _answer_fork(self, threads: ForkWorker, descriptors: list[int]) -> None:
        """Forks a worker and tells its process, or why there is none: workers that serve must not suffer."""
        try:
            pid = self._fork_worker(threads, *descriptors)
        except (OSError, MemoryError) as error:  # as by a limit of processes or memory
            messages.send(self.control, Forked(0, f"it could not be forked: {error}"))
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # the kernel has none, or no more descriptors are to be had
            messages.send(self.control, Forked(pid))
        else:
            messages.send(self.control, Forked(pid), (pidfd,))
            os.close(pidfd)
        # Only now: until its pidfd is open, its pid must stay its own.
        self.children.add(pid)
        self._reap_children()

    def _fork_worker(
        self,
        threads: ForkWorker,
        channel_fd: int,
        input_fd: int,
        output_fd: int,
        meeting_fd: int | None = None,
    ) -> int:
        from serving_adapter.server.workers.worker import work

        def child() -> None:
            self.control.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides when a worker ends
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            work(
                self.models,
                self.outputs,
                socket.socket(fileno=channel_fd),
                input_fd,
                output_fd,
                self.device,
                threads,
                self.on_device,
                meeting_fd,
            )

        return fork(child)

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        # Only a child not reaped yet: its pid cannot have been given to another process.
        if pid in self.children:
            with contextlib.suppress(ProcessLookupError):  # reaped in this instant
                os.kill(pid, signum)

    def _reap(self, signum: int, frame: FrameType | None) -> None:
        self._reap_children()

    def _reap_children(self) -> None:
        """Reaps the workers that have ended, and nobody else: a model may have processes of its own."""
        for pid in list(self.children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self.children.discard(pid)


def _warn_of_threads() -> None:
    """A thread is not there in a forked worker, which hangs if it held a lock."""
    if sys.platform == "linux" and (threads := len(os.listdir("/proc/self/task"))) > 1:
        log.warning(
            "building the model has left %d threads beside the main one, so workers may hang while they "
            "start; have its factory start none",
            threads - 1,
        )


def _give_memory_back() -> None:
    """Returns the memory of weights that lie in the store now.

    The allocator keeps what is freed, because the front says so (`ENVIRONMENT` in `launching`).
    """
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _check_device(device: str) -> None:
    """Raises ModelError if models cannot run there; it asks NVML, since CUDA does not survive a fork."""
    import torch

    from serving_adapter.models.model import ModelError

    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ModelError(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    count = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        raise ModelError(
            f"--device {device} is not there: torch {torch.__version__} sees {count} CUDA devices; "
            "use --device cpu, or install a CUDA build of torch"
        )


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are the front's to handle
        signal.signal(signum, signal.SIG_IGN)
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    keep_standard_streams(prints_to=ERROR)  # what models print is log, beside the lines that the front says
    Zygote(socket.socket(fileno=int(sys.argv[2]))).serve()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
