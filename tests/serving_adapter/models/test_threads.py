"""Threads: a built model leaves its process safe to fork, and branches run with the intra-op setting."""

# No `from __future__ import annotations`: TorchScript reads the annotations themselves.
import os
import threading

import torch

from serving_adapter import model_store
from serving_adapter.models import CATALOGUE, branches
from serving_adapter.models.loading import load_model
from serving_adapter.server.workers.worker import describe
from serving_adapter.server.workers.zygote import PROBE_SIZES, fork

QUICK = {
    "inception_v3": {"image_size": "75"},
    "inception_resnet_v2": {"image_size": "75"},
    "vgg16": {"image_size": "32", "width": "64"},
    "deepspeech2": {"hidden_size": "16"},
    "burn": {"branches": "2", "size": "64"},
}


def test_building_starts_no_thread_and_forked_processes_run_the_model(apart):
    found = apart(build_and_fork)
    assert found == {name: {"threads": 1, "forked": [1, 2]} for name in CATALOGUE}


def build_and_fork() -> dict[str, object]:
    """Builds every model as a zygote does; two children run each, with 1 and 2 inter-op threads."""
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for name in CATALOGUE:
        model = load_model(name, QUICK.get(name, {}))
        model_store.share(model.module, name)
        threads = len(os.listdir("/proc/self/task"))
        found[name] = {"threads": threads, "forked": [n for n in (1, 2) if runs_in_a_fork(model, n)]}
    return found


def runs_in_a_fork(model, inter_op_threads: int) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_interop_threads(inter_op_threads)
            torch.set_num_threads(2)
            model.run(model.example(rows=2))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_threads_that_run_branches_take_the_intra_op_setting_at_their_start_only(apart):
    """Why the worker pool forks new workers for a change of intra_op_threads on such a model."""
    assert apart(counts_on_the_pool) == {"started": [2, 2], "changed": [2, 2]}


def counts_on_the_pool() -> dict[str, object]:
    torch.set_num_threads(1)
    model = load_model("burn", {"branches": "2", "size": "64"})
    torch.set_num_interop_threads(2)
    torch.set_num_threads(2)
    model.run(model.example())
    with branches.torchscript():
        probe = torch.jit.script(count_on_the_pool)
    found: dict[str, object] = {"started": [int(n) for n in probe(torch.zeros(1))]}
    torch.set_num_threads(1)
    return found | {"changed": [int(n) for n in probe(torch.zeros(1))]}


meeting = threading.Barrier(2)


def _count(token: torch.Tensor) -> torch.Tensor:
    meeting.wait(10.0)  # both threads of the pool, not one of them twice
    return token + torch.get_num_threads()


count_here = torch.jit.ignore(_count)


def count_on_the_pool(token: torch.Tensor) -> list[torch.Tensor]:
    running = [torch.jit.fork(count_here, token) for _ in range(2)]
    return [torch.jit.wait(call) for call in running]


def test_a_model_with_branches_can_be_run_first_thing_in_every_process_forked(apart):
    """PyTorch's inter-op threads may abort a process just forked if they all renew its thread pool."""
    assert apart(probe_again_and_again) == 0


def probe_again_and_again() -> int:
    """How many of many children ended badly."""
    torch.set_num_threads(1)
    model = load_model("burn", {"branches": "2", "rounds": "1"})

    def probe() -> None:
        describe(model, PROBE_SIZES)

    return sum(os.waitpid(fork(probe), 0)[1] != 0 for _ in range(150))
