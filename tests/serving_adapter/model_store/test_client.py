"""The transparent client: what opening gives, when references return, and what outlives whom."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import safetensors.torch
import torch
from running_store import (
    Seen,
    in_repository,
    saved,
    script,
    short_folder,
    some_weights,
    stores,
    until,
    with_header,
)
from torch import nn

from serving_adapter import messages, model_store
from serving_adapter.model_store import Client, StoreError, StoreUnavailable, UnknownModel, tensors
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.models.branches import torchscript


@pytest.fixture
def start_store(tmp_path):
    with stores(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    in_repository(root, "net", "1", net(0).state_dict())
    in_repository(root, "net", "2", net(1).state_dict())
    with stores(tmp_path_factory.mktemp("store")) as start:
        yield start("--remote", f"file://{root}")


@pytest.fixture
def store(running, monkeypatch):
    """The process's default client talks to it, and is closed afterwards."""
    with default_client_of(running.folder, monkeypatch):
        yield running


@contextlib.contextmanager
def default_client_of(folder, monkeypatch):
    monkeypatch.setenv("RRL_STORE", str(folder))
    monkeypatch.setattr(tensors, "_clients", {})
    try:
        yield
    finally:
        gc.collect()
        for client in tensors._clients.values():
            client.close()


@pytest.fixture
def seen(running):
    with running.client() as client:
        seen = Seen(client)
        until(lambda: seen.references == 0, "earlier tests' references return")
        yield seen
        until(lambda: seen.references == 0, "the references return")


def net(seed: int, width: int = 128) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)
    ).eval()


CHILD = "import sys\nfrom pathlib import Path\nimport torch\nfrom serving_adapter import model_store\n"


# --- what opening gives ----------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "seed"), [("1", 0), ("2", 1), ("", 1)])
def test_an_opened_model_loads_into_a_meta_module_and_answers_as_a_private_one(store, version, seed):
    with torch.device("meta"):
        module = net(5).eval()
    module.load_state_dict(model_store.open("net", version), assign=True)
    x = torch.randn(4, 128)
    assert torch.equal(module(x), net(seed)(x))


def test_what_nobody_has_is_an_unknown_model(store):
    for name, version in (("nope", ""), ("net", "9"), ("../net", "1"), ("", "")):
        with pytest.raises(UnknownModel):
            model_store.open(name, version)


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_load_file_gives_what_safetensors_gives(store, tmp_path, as_path):
    weights = some_weights()
    weights |= {str(dtype): torch.arange(6).to(dtype).reshape(1, 2, 3) for dtype in tensors.NAMES}
    path = as_path(saved(weights, tmp_path / "w.safetensors"))
    ours, theirs = model_store.load_file(path), safetensors.torch.load_file(path)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert ours[name].shape == tensor.shape
        assert ours[name].stride() == tensor.stride()
        assert torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8)) if tensor.ndim else True
        assert torch.equal(ours[name].to(torch.complex64), tensor.to(torch.complex64))


def test_load_file_fails_as_safetensors_does(store, tmp_path):
    (tmp_path / "garbage").write_bytes(b"\xff" * 1000)
    (tmp_path / "empty").write_bytes(b"")
    whole = saved(some_weights(), tmp_path / "whole").read_bytes()
    (tmp_path / "truncated").write_bytes(whole[:-1])
    for name in ("missing", "garbage", "empty", "truncated", "."):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            safetensors.torch.load_file(tmp_path / name)
        with pytest.raises(type(theirs.value)):
            model_store.load_file(tmp_path / name)


def test_a_file_that_was_written_again_is_loaded_again(store, tmp_path):
    for seed in range(3):
        path = saved(some_weights(seed), tmp_path / "w")
        assert torch.equal(model_store.load_file(path)["0.weight"], some_weights(seed)["0.weight"])


def test_a_second_load_reads_no_weights(store, seen, tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    held = model_store.load_file(path)
    before = seen.tier()
    again = model_store.load_file(path)
    after = seen.tier()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)
    assert after.used_bytes == before.used_bytes
    del held, again


def test_a_file_too_small_for_sharing_to_pay_is_loaded_privately(store, seen, tmp_path):
    weights = model_store.load_file(saved({"a": torch.ones(10)}, tmp_path / "small"))
    assert seen.references == 0
    weights["a"].zero_()


def test_several_threads_may_load_at_once(store, seen, tmp_path):
    paths = [saved(some_weights(i), tmp_path / str(i)) for i in range(4)]
    failures: list[BaseException] = []

    def load(i: int) -> None:
        try:
            for j in range(10):
                weights = model_store.load_file(paths[(i + j) % 4])
                assert torch.equal(weights["0.weight"], some_weights((i + j) % 4)["0.weight"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_more_tensors_than_the_process_may_have_descriptors(start_store, tmp_path):
    """Each lies in a segment of its own, and 1,024 descriptors are all that a process has by default."""
    store = start_store("--granularity", "tensor")
    count, size = 400, 1 << 16
    entries = {
        str(i): {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(count)
    }
    path = with_header(tmp_path / "many", entries, count * size)
    text = CHILD + (
        "import logging; logging.raiseExceptions = False\n"
        "weights = model_store.load_file(sys.argv[1])\n"
        "import os; print(len(weights), len(os.listdir('/proc/self/fd')), flush=True)\nsys.stdin.read()"
    )
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
    with script(limit + text, path, RRL_STORE=str(store.folder)) as process, store.client() as client:
        answered, open_descriptors = map(int, process.stdout.readline().split())
        assert (answered, Seen(client).references) == (count, 1)  # not loaded privately
        assert open_descriptors < 100


# --- isolation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("writing", ["tensor.zero_()", "tensor[0, 0] = 1", "tensor.numpy()[0] = 1"])
def test_writing_ends_the_writer_and_changes_nothing_for_others(store, tmp_path, writing):
    path = saved(some_weights(), tmp_path / "w")
    mine = model_store.load_file(path)["0.weight"]
    text = CHILD + (
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"tensor = model_store.load_file(sys.argv[1])['0.weight']\n{writing}\nprint('written')"
    )
    ended = subprocess.run([sys.executable, "-c", text, str(path)], capture_output=True, check=False)
    assert ended.returncode in (-signal.SIGSEGV, -signal.SIGBUS)
    assert b"written" not in ended.stdout
    assert torch.equal(mine, some_weights()["0.weight"])
    assert torch.equal(model_store.load_file(path)["0.weight"], some_weights()["0.weight"])


def test_what_is_handed_over_can_neither_be_mapped_for_writing_nor_changed(store):
    sock, session = store.session()
    from serving_adapter import messages
    from serving_adapter.model_store.protocol import model_store_pb2 as pb

    with contextlib.closing(sock), store.stub() as stub:
        stub.Open(pb.OpenRequest(session=session, address=pb.Address(name="net", version="1")))
        _, descriptors = messages.receive_with_descriptors(sock, 253)
        import fcntl
        import mmap

        for fd in descriptors:
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096)
            for change in (
                lambda: os.pwrite(fd, b"x", 0),  # noqa: B023
                lambda: os.ftruncate(fd, 0),  # noqa: B023
                lambda: os.ftruncate(fd, 1 << 20),  # noqa: B023
                lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0),  # noqa: B023
                lambda: os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0),  # noqa: B023
            ):
                with pytest.raises(OSError, match=r"not permitted|Bad file descriptor|Invalid argument"):
                    change()
            os.close(fd)


# --- references ------------------------------------------------------------------------------------


def test_a_reference_returns_when_the_last_tensor_is_garbage(store, seen, tmp_path):
    weights = model_store.load_file(saved(some_weights(), tmp_path / "w"))
    assert seen.references == 1
    last = weights.pop("1.bias")[5:]
    del weights
    gc.collect()
    assert seen.references == 1
    assert torch.equal(last, some_weights()["1.bias"][5:])
    del last
    until(lambda: seen.references == 0)


def test_a_module_keeps_its_model_in_use(store, seen):
    with torch.device("meta"):
        module = net(5)
    module.load_state_dict(model_store.open("net", "1"), assign=True)
    gc.collect()
    assert seen.references == 1
    del module
    gc.collect()
    until(lambda: seen.references == 0)


@pytest.mark.parametrize("ending", ["kill -9", "no close", "os._exit", "an exception"])
def test_references_return_however_the_client_ends(store, seen, ending, tmp_path):
    last = {"kill -9": "", "no close": "", "os._exit": "os._exit(3)", "an exception": "raise SystemExit(5)"}
    text = CHILD + (
        "import os\nweights = model_store.load_file(sys.argv[1]) | model_store.open('net')\n"
        f"print('open', flush=True)\nsys.stdin.read()\n{last[ending]}"
    )
    with script(text, saved(some_weights(), tmp_path / "w")) as process:
        assert process.stdout.readline() == "open\n"
        assert seen.references == 2
        if ending == "kill -9":
            process.kill()
        else:
            process.stdin.close()
        process.wait(30)
        until(lambda: seen.references == 0)


def test_closing_a_client_gives_its_references_back_and_leaves_its_tensors_valid(running, seen, tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    client = running.client()
    with path.open("rb") as file:
        weights = tensors.state_dict(client.open_file(file, "w"))
    client.close()
    until(lambda: seen.references == 0)
    assert torch.equal(weights["0.weight"], some_weights()["0.weight"])


def test_a_client_that_was_closed_may_be_used_again(running, tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    with running.client() as other, running.client() as client, path.open("rb") as file:
        client.open_file(file, "w")
        client.close()
        until(lambda: Seen(other).references == 0)
        client.open_file(file, "w")
        until(lambda: Seen(other).references == 0, "it gives back as any other")


def test_closing_a_client_gives_its_references_back_although_a_forked_process_lives(running, seen):
    client = running.client()
    held = client.open("net", "1")
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        client.close()
        until(lambda: seen.references == 0)
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(pid, 0)
    del held


FORKING = """
import os
weights = model_store.load_file(sys.argv[1])
expected = weights["0.weight"].clone()
pid = os.fork()
if not pid:
    assert torch.equal(weights["0.weight"], expected)
    del weights  # the reference is the parent's
    {child}
    os.write(1, b"child\\n")  # at once: two processes write to one pipe
    sys.stdin.read()
    os._exit(0)
os.write(1, b"parent\\n")
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    "child", ["pass", "assert torch.equal(model_store.load_file(sys.argv[1])['0.weight'], expected)"]
)
def test_a_forked_process_shares_what_is_open_and_may_open_more(store, seen, tmp_path, child):
    path = saved(some_weights(), tmp_path / "w")
    text = CHILD + FORKING.format(child=child)
    with script(text, path) as process:
        told = {process.stdout.readline().strip() for _ in range(2)}
        assert told == {"child", "parent"}
        assert seen.references >= 1
        (forked,) = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
        assert seen.references >= 1  # the forked one still maps it
        forked.kill()
        until(lambda: seen.references == 0)


def test_a_forked_process_is_told_to_make_a_client_of_its_own(running):
    with running.client() as client:
        client.open("net")
        if not (pid := os.fork()):
            try:
                client.open("net")
            except StoreError as error:
                os._exit(0 if "of its own" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_client_starts_no_thread(store, seen, tmp_path):
    text = CHILD + (
        "import os\nbefore = len(os.listdir('/proc/self/task'))\n"
        "weights = model_store.load_file(sys.argv[1]) | model_store.open('net')\n"
        "module = torch.nn.Linear(300, 300)\nmodel_store.share(module, 'linear')\n"
        "print(before, len(os.listdir('/proc/self/task')), flush=True)\nsys.stdin.read()"
    )
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with script(text, saved(some_weights(), tmp_path / "w"), **environment) as process:
        assert process.stdout.readline().split() == ["1", "1"]
        assert seen.references == 3


def test_the_answer_to_an_interrupted_question_is_not_taken_for_the_next(running, seen):
    """A Ctrl-C between question and answer leaves the answer in the connection."""
    with running.client() as client:
        client.open("net", "1")
        messages.send(client._socket, {"open": {"name": "net", "version": "1"}, "id": -1})
        weights = tensors.state_dict(client.open("net", "2"))
        assert torch.equal(weights["0.weight"], net(1).state_dict()["0.weight"])
        until(lambda: seen.references == 1, "the model that nobody took is given back")


# --- the store ends, or is not there ---------------------------------------------------------------


def test_a_killed_store_is_replaced_by_one_that_finds_its_disk_tier(tmp_path, start_store, monkeypatch):
    """The repository is gone meanwhile, so the weights can only come from the cache."""
    root = tmp_path / "repository"
    in_repository(root, "net", "1", net(0).state_dict())
    first = start_store("--remote", f"file://{root}", "--cache", tmp_path / "cache")
    with default_client_of(first.folder, monkeypatch):
        weights = model_store.open("net", "1")
        with first.client() as client:
            until(lambda: Seen(client).has_written, "the model is on disk")
        first.stop(signal.SIGKILL)
        shutil.rmtree(root)
        for name, tensor in net(0).state_dict().items():
            assert torch.equal(weights[name], tensor)  # what is mapped stays
        again = model_store.open("net", "1")
        for name, tensor in net(0).state_dict().items():
            assert torch.equal(again[name], tensor)
        seen = Seen(tensors.default_client())
        second = seen.stats().pid
        try:
            assert second != first.pid
            assert seen.tier("disk").hits == 1
            assert seen.references == 1
            del weights  # a reference to the store that is gone
            gc.collect()
            assert seen.references == 1
            del again
            gc.collect()
            until(lambda: seen.references == 0)
        finally:
            os.kill(second, signal.SIGTERM)
        until(lambda: not psutil.pid_exists(second))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_opens_while_a_store_ends_is_served_by_the_next(start_store, tmp_path, monkeypatch, signum):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = saved(some_weights(), tmp_path / "w")
    first = start_store()
    with Client(Endpoint(first.folder)) as client, path.open("rb") as file:
        held = client.open_file(file, "w")
        first.process.send_signal(signum)
        again = client.open_file(file, "w")
        first.process.wait(30)
        once_more = client.open_file(file, "w")  # `again` may have come from the first yet
        second = Seen(client).stats().pid
        os.kill(second, signal.SIGTERM)
        del held, again, once_more
    assert second != first.pid
    until(lambda: not psutil.pid_exists(second))


def test_processes_that_start_a_store_at_once_end_with_one(tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    text = CHILD + (
        "from serving_adapter.model_store.tensors import default_client\n"
        "from serving_adapter.model_store.protocol import model_store_pb2 as pb\n"
        "print('ready', flush=True)\nsys.stdin.readline()\nweights = model_store.load_file(sys.argv[1])\n"
        "print(default_client().call('Stats', pb.Empty()).pid, flush=True)\nsys.stdin.read()"
    )
    with short_folder() as folder, contextlib.ExitStack() as stack:
        variables = {"RRL_STORE": str(folder), "HOME": str(tmp_path)}
        processes = [stack.enter_context(script(text, path, **variables)) for _ in range(4)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        pids = {int(process.stdout.readline()) for process in processes}
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        assert len(pids) == 1
        until(lambda: not any(map(psutil.pid_exists, pids)))


def test_a_client_waits_for_a_store_that_somebody_else_is_starting(tmp_path, monkeypatch):
    """An operator's own, which has the lock but does not listen yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = saved(some_weights(), tmp_path / "w")
    with short_folder() as folder, stores(tmp_path) as start:
        opened: list[object] = []

        def load() -> None:
            until(lambda: (folder / "lock").exists())
            with Client(Endpoint(folder)) as client, path.open("rb") as file:
                try:
                    opened.append(client.open_file(file, "w").version)
                except StoreError as error:
                    opened.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        start(folder=folder)
        thread.join()
        assert isinstance(opened[0], str), opened


def test_no_store_is_unavailable_for_a_client_that_starts_none():
    with short_folder() as folder, pytest.raises(StoreUnavailable, match="start one with: rrl-store serve"):
        Client(Endpoint(folder), starts_store=False).open("net")


def test_weights_are_loaded_privately_where_no_store_can_be(tmp_path, monkeypatch, caplog):
    path = saved(some_weights(), tmp_path / "w")
    file = tmp_path / "file"
    file.write_text("")
    for folder in (tmp_path / ("x" * 120), file, file / "below"):
        with default_client_of(folder, monkeypatch):
            weights = model_store.load_file(path)
            assert torch.equal(weights["0.weight"], some_weights()["0.weight"])
            weights["0.weight"].zero_()  # private
            with pytest.raises(StoreError):
                model_store.open("net")
            with pytest.raises(StoreError):
                model_store.share(nn.Linear(300, 300), "linear")
    assert "is loaded privately" in caplog.text


def test_a_store_that_hangs_is_not_waited_for_forever(start_store, monkeypatch):
    from serving_adapter.model_store import client as module

    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.2)
    store = start_store()
    store.process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.client().open("net")


# --- RRL_STORE=off ---------------------------------------------------------------------------------


def test_a_store_switched_off_is_not_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved(some_weights(), tmp_path / "w")
    with default_client_of("off", monkeypatch):
        weights = model_store.load_file(path)
        weights["0.weight"].zero_()  # private
        assert model_store.share(nn.Linear(300, 300), "linear") == 0
        with pytest.raises(StoreError):
            model_store.open("net")
    assert os.listdir(tmp_path) == ["w"]


# --- share -----------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.out = nn.Linear(64, 100, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x))


def scripted() -> nn.Module:
    with torchscript():
        return torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.ReLU()))


def transposed() -> nn.Module:
    module = nn.Linear(64, 32)
    module.weight = nn.Parameter(torch.randn(64, 32).t())
    return module


MODULES = {
    "plain": (lambda: net(0), torch.randn(2, 128)),
    "channels last": (
        lambda: nn.Conv2d(16, 16, 3).to(memory_format=torch.channels_last),
        torch.randn(2, 16, 8, 8),
    ),
    "tied": (Tied, torch.arange(10)),
    "half": (lambda: nn.Linear(64, 64).to(torch.bfloat16), torch.randn(2, 64, dtype=torch.bfloat16)),
    "transposed": (transposed, torch.randn(2, 64)),
    "frozen": (lambda: nn.Linear(64, 64).requires_grad_(False), torch.randn(2, 64)),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", MODULES)
def test_a_shared_module_is_as_it_was(store, seen, kind):
    make, x = MODULES[kind]
    module = make()
    answer = module(x)
    before = {name: (p.stride(), p.requires_grad, p.clone()) for name, p in module.named_parameters()}
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    assert model_store.share(module, kind) == size
    for name, p in module.named_parameters():
        stride, requires_grad, value = before[name]
        assert (p.stride(), p.requires_grad) == (stride, requires_grad)
        assert torch.equal(p, value)
    assert torch.equal(module(x), answer)
    assert seen.references == 1
    assert kind in {model.address.name for model in seen.models()}
    assert model_store.share(module, kind) == 0  # it is shared already
    del module, p
    gc.collect()
    until(lambda: seen.references == 0)
    assert kind not in {model.address.name for model in seen.models()}  # nobody can ask for it again


def test_tied_parameters_stay_tied(store):
    module = Tied()
    model_store.share(module, "tied")
    assert module.out.weight is module.words.weight


@torch.no_grad()
def test_a_torchscript_module_can_be_shared(store, seen):
    module, x = scripted(), torch.randn(3, 64)
    answer = module(x)
    assert model_store.share(module, "scripted") > 0
    assert torch.equal(module(x), answer)
    del module
    gc.collect()


def test_what_is_not_dense_stays_private(store, seen):
    module = nn.Linear(64, 64, bias=False)
    module.weight = nn.Parameter(torch.randn(64, 1).expand(64, 64), requires_grad=False)
    assert model_store.share(module, "expanded") == 0
    module.weight = nn.Parameter(torch.randn(64, 128)[:, ::2])
    assert model_store.share(module, "gaps") == 0
    assert model_store.share(nn.ReLU(), "nothing") == 0
    assert model_store.share(nn.Linear(5, 5, device="meta"), "meta") == 0
    assert model_store.share(nn.LazyLinear(5), "lazy") == 0
    assert seen.references == 0


def test_buffers_stay_writable(store):
    module = nn.BatchNorm1d(64).train()
    model_store.share(module, "norm")
    module(torch.randn(8, 64))
    assert module.num_batches_tracked == 1


def test_equal_modules_of_two_processes_share_their_memory(store, seen):
    text = CHILD + (
        "torch.manual_seed(3)\nmodule = torch.nn.Linear(512, 512)\n"
        "model_store.share(module, 'linear')\nprint('shared', flush=True)\nsys.stdin.read()"
    )
    before = seen.stats()
    with script(text) as first:
        assert first.stdout.readline() == "shared\n"
        used = seen.tier().used_bytes
        assert used >= 512 * 512 * 4
        with script(text) as second:
            assert second.stdout.readline() == "shared\n"
            assert seen.tier().used_bytes == used
            assert seen.stats().deduplicated_bytes - before.deduplicated_bytes >= 512 * 512 * 4
    until(lambda: seen.stats().deduplicated_bytes == before.deduplicated_bytes)


def test_descriptors_of_the_client_do_not_grow(store, seen, tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    model_store.load_file(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        model_store.load_file(path)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before
