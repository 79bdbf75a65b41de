"""GPU memory is never freed under tensors that are alive, whatever becomes of their client's connection."""

from __future__ import annotations

import pytest
from safetensors.numpy import save

from serving_adapter.model_store import NoRoom, StoreError
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.service.sessions import ClientSession
from tests.support.pipes import line_of, tell
from tests.support.stores.fake_cuda import client_of, store_with_a_gpu
from tests.support.stores.running_store import PAGE, Seen, script
from tests.support.waiting import until

GPU = "cuda:0"

HOLDER = """
import sys
from pathlib import Path
from serving_adapter.model_store import Client
from serving_adapter.model_store.endpoint import Endpoint

client = Client(Endpoint(Path(sys.argv[1])), starts_store=False)
held = client.open("a", "1", device="cuda:0")
steps = {
    "lose": lambda: client._socket.shutdown(2),
    "close": client.close,
    "give back": held.give_back,
    "ask again": lambda: client.open("b", "1"),
}
print("held", flush=True)
for line in sys.stdin:
    steps[line.strip()]()
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory, pages):
    """Its GPU has room for one model; there are two."""
    root = tmp_path_factory.mktemp("repository")
    for i, name in enumerate("ab"):
        file = root / name / "1" / "model.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(save(pages(value=i + 1)))
    with store_with_a_gpu(tmp_path_factory.mktemp("cache"), f"file://{root}", PAGE) as endpoint:
        yield endpoint


@pytest.fixture
def holder(store):
    """A process with model `a` on the GPU, which does what it is told."""
    with script(HOLDER, store.folder) as process:
        assert line_of(process) == "held\n"
        yield process


def do(process, *steps: str) -> None:
    for step in steps:
        tell(process, step)
        assert line_of(process) == "done\n"


def is_free(client) -> bool:
    """Whether another model gets the room on the GPU."""
    try:
        client.open("b", "1", device=GPU).give_back()
        client.call("Evict", pb.EvictRequest(address=pb.Address(name="b"), tier="gpu"))
    except NoRoom:
        return False
    return True


@pytest.mark.parametrize("end", ["close", "lose"])
def test_it_stays_when_the_session_ends_and_goes_with_the_process(store, holder, end):
    with client_of(store) as client:
        do(holder, end)
        until(lambda: Seen(client).stats().clients == 0, "the session ends")
        assert not is_free(client)
        with pytest.raises(NoRoom, match="in use"):
            client.call("Evict", pb.EvictRequest(address=pb.Address(name="a"), tier="gpu"))
        assert Seen(client).references == 1
        holder.kill()
        until(lambda: Seen(client).references == 0, "the reference goes with the process")
        assert is_free(client)


def test_a_process_that_connects_again_can_give_it_back(store, holder):
    with client_of(store) as client:
        do(holder, "close", "give back")
        assert not is_free(client)
        do(holder, "ask again")
        until(lambda: is_free(client), "the memory is given back")


def test_a_process_whose_end_nobody_would_notice_gets_no_gpu_memory():
    """As one of another PID namespace, which has no number here."""
    session = ClientSession(None, Account(PAGE), -5)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="hands out no GPU memory"):
        session.watch()
