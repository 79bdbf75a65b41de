"""A store with a good client, which must see nothing of what the hostile ones do."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support import CHECKOUT
from tests.support.pipes import line_of, tell
from tests.support.stores.hostile_clients import open_and_check
from tests.support.stores.running_store import RunningStore, Seen, script, stores
from tests.support.stores.weights_files import in_repository, saved, some_weights
from tests.support.waiting import until

MAX_LEASES = 2_000  # of a client, for it takes a while to have more


@pytest.fixture(scope="module")
def good_file(tmp_path_factory):
    return saved(some_weights(), tmp_path_factory.mktemp("weights") / "good.safetensors")


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[RunningStore]:
    root = tmp_path_factory.mktemp("repository")
    in_repository(root, "served", "1", some_weights(seed=1))
    with stores(tmp_path_factory.mktemp("store")) as start:
        yield start("--remote", f"file://{root}", "--client-quota", "64M", max_leases=MAX_LEASES)


@pytest.fixture
def start_store(tmp_path):
    with stores(tmp_path) as start:
        yield start


GOOD_CLIENT = """
import sys
from pathlib import Path
import torch
from tests.support.stores.weights_files import some_weights
from serving_adapter.model_store import Client
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.torch_side.tensors import state_dict
endpoint, path, expected = Endpoint(Path(sys.argv[1])), Path(sys.argv[2]), some_weights()
for _ in sys.stdin:
    with Client(endpoint, starts_store=False) as client, path.open("rb") as file:
        weights = state_dict(client.open_file(file, "good"))
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
        del weights
    print("good", flush=True)
"""


class GoodClient:
    """A process that connects, opens, checks every byte, closes and disconnects, again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.rounds, self.fails = 0, False
        self._process, self._pause = process, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._pause.is_set():
            tell(self._process)
            if line_of(self._process) != "good\n":
                self.fails = True
                self._process.wait()
                return
            self.rounds += 1

    def __enter__(self) -> GoodClient:
        self._thread.start()
        self.is_served_again()
        return self

    def is_served_again(self) -> None:
        """A whole round that began after now."""
        rounds = self.rounds
        until(lambda: self.rounds >= rounds + 2 or self.fails, "the good client is answered")
        assert not self.fails

    def __exit__(self, *_: object) -> None:
        self._pause.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert not self.fails


@pytest.fixture(scope="module")
def good_processes() -> Iterator[tuple[contextlib.ExitStack, list[subprocess.Popen[str]]]]:
    with contextlib.ExitStack() as stack:
        yield stack, []


@pytest.fixture
def good_process(running, good_file, good_processes) -> subprocess.Popen[str]:
    """The same one for all tests while none of them harms it."""
    stack, processes = good_processes
    if not processes or processes[-1].poll() is not None:
        process = script(GOOD_CLIENT, running.folder, good_file, PYTHONPATH=str(CHECKOUT))
        processes.append(stack.enter_context(process))
    return processes[-1]


def evict_all_but(seen: Seen, kept: list[str]) -> bool:
    """Models that were read whole before their client left stay until there is need of room."""
    others = [model.address for model in seen.models() if model.address.name not in kept]
    for address in others:
        with contextlib.suppress(StoreError):
            seen.client.call("Evict", pb.EvictRequest(address=address))
    return not others


@pytest.fixture
def unharmed(running, good_file, good_process):
    """The store; after the test its bytes, references, sessions and descriptors are as before."""
    with running.client() as watching:
        seen = Seen(watching)
        open_and_check(watching, good_file)
        watching.open("served")
        until(lambda: seen.references == 0, "the references return before the test")
        until(lambda: seen.has_written, "the model is written to disk")
        before, descriptors = seen.stats(), running.descriptors()
        kept = [model.address.name for model in seen.models()]
        with GoodClient(good_process) as good:
            running.good = good
            yield running
            good.is_served_again()
        until(lambda: seen.stats().clients == before.clients, "the sessions go")
        until(lambda: seen.references == 0, "the references return")
        until(
            lambda: evict_all_but(seen, kept) and len(running.descriptors()) <= len(descriptors),
            f"the descriptors return to {Counter(descriptors)}: {Counter(running.descriptors())}",
        )
        after = seen.stats()
        assert {t.tier: t.used_bytes for t in after.tiers} == {t.tier: t.used_bytes for t in before.tiers}
        assert after.pid == running.pid
