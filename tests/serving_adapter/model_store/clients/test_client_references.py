"""When references return, what keeps them, and what of a model nobody can change."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch

from serving_adapter import messages, model_store
from serving_adapter.model_store import StoreError
from serving_adapter.model_store.torch_side import tensors
from tests.support.pipes import line_of
from tests.support.stores.running_store import Seen, script
from tests.support.stores.store_clients import CHILD, net
from tests.support.stores.weights_files import saved, some_weights
from tests.support.waiting import PATIENCE_S, until


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
        assert line_of(process) == "open\n"
        assert seen.references == 2
        if ending == "kill -9":
            process.kill()
        else:
            assert process.stdin is not None
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
        told = {line_of(process).strip() for _ in range(2)}
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
        assert line_of(process).split() == ["1", "1"]
        assert seen.references == 3


def test_the_answer_to_an_interrupted_question_is_not_taken_for_the_next(running, seen):
    """A Ctrl-C between question and answer leaves the answer in the connection."""
    with running.client() as client:
        client.open("net", "1")
        messages.send(client._socket, {"open": {"name": "net", "version": "1"}, "id": -1})
        weights = tensors.state_dict(client.open("net", "2"))
        assert torch.equal(weights["0.weight"], net(1).state_dict()["0.weight"])
        until(lambda: seen.references == 1, "the model that nobody took is given back")


def test_a_process_ends_without_a_warning_of_its_connection(store, seen, tmp_path):
    text = CHILD + "model_store.load_file(sys.argv[1])"
    command = [sys.executable, "-X", "dev", "-c", text, str(saved(some_weights(), tmp_path / "w"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "unclosed" not in ended.stderr


def test_what_a_process_forked_has_its_references_when_that_ends(store, seen, tmp_path):
    text = CHILD + (
        "import os\n"
        "weights = model_store.load_file(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    sys.stdin.read()\n"
        "    print(float(weights['0.weight'].sum()), flush=True)\n"
    )
    command = [sys.executable, "-c", text, str(saved(some_weights(), tmp_path / "w"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.wait(PATIENCE_S) == 0
        assert seen.references == 1
        told, _ = process.communicate()
    assert float(told) == float(some_weights()["0.weight"].sum())
