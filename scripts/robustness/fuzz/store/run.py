"""The sockets of a model store under broken and hostile clients, beside an honest one.

Between rounds all of them go, and a look at the store at rest tells what they left behind.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import count

from scripts.robustness.fuzz.findings import Findings
from scripts.robustness.fuzz.store.attacker import Attacker, AttackTally
from scripts.robustness.fuzz.store.files import StoreFiles
from scripts.robustness.fuzz.store.watched_store import HonestClient, WatchedStore, watched_store
from scripts.robustness.process_usage import HeldByProcesses
from scripts.robustness.tuner_watch import MOST_GROWTH_BYTES
from serving_adapter.model_store import Client, StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb

ATTACKERS = 6  # connections to the sessions' socket, and as many of gRPC
MOST_MORE_THREADS = 16  # idle ones of the pools, which depend on what came together
MOST_MORE_DESCRIPTORS = 8
WARM_UP_SHARE = 0.1
PATIENCE_AT_REST_S = 60.0


@dataclass
class StoreFuzzed:
    """What a run on the store saw, in numbers."""

    packets: int = 0
    models_handed_over: int = 0
    honest_openings: int = 0
    slowest_honest_s: float = 0.0
    before: HeldByProcesses | None = None  # with the honest client alone
    warm: HeldByProcesses | None = None
    end: HeldByProcesses | None = None
    kinds: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def fuzz_store(
    seed: int, first: int, packets: int, round_size: int, seconds: float, findings: Findings
) -> StoreFuzzed:
    """Sends so many packets and calls, for at most so many seconds."""
    seen, began_s = StoreFuzzed(), time.monotonic()
    with watched_store() as store:
        files = StoreFiles(store.folder, seed)
        honest = HonestClient(store)
        seen.before = store.held()
        try:
            end = first + packets
            while first < end and time.monotonic() - began_s < seconds and store.is_alive():
                last = min(end, first + round_size)
                attack(store, files, seed, first, last, findings, seen)
                first = last
                seen.seconds = time.monotonic() - began_s
                _look(store, findings, seen, is_warm=seen.packets >= WARM_UP_SHARE * packets)
            told = honest.end()
        finally:
            honest.kill()
        seen.honest_openings, seen.slowest_honest_s = told.openings, told.slowest_s
        for fault in told.faults:
            findings.add("the honest client beside is hindered", fault)
        if store.is_alive():
            _look_at_models(store, findings)
    return seen


def attack(
    store: WatchedStore,
    files: StoreFiles,
    seed: int,
    first: int,
    last: int,
    findings: Findings,
    seen: StoreFuzzed,
) -> None:
    """Sends the steps of those numbers on several connections, each of which takes the next number.

    An attacker that breaks is a finding, and the others go on.
    """
    numbers, tally = count(first), AttackTally(findings)

    def take_turns() -> None:
        number = first
        try:
            with Attacker(store.endpoint, files, seed, tally) as attacker:
                while (number := next(numbers)) < last and store.is_alive():
                    attacker.take(number)
        except Exception as error:  # whatever it is, the store made a client raise it
            tally.broke(error, number)

    threads = [threading.Thread(target=take_turns) for _ in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen.packets += tally.kinds.total()
    seen.models_handed_over += tally.models
    for kind, times in tally.kinds.items():
        seen.kinds[kind] = seen.kinds.get(kind, 0) + times


def _look(store: WatchedStore, findings: Findings, seen: StoreFuzzed, is_warm: bool) -> None:
    """What the attackers left behind, once they are gone."""
    after = f"after {seen.packets} packets"
    for line in store.new_complaints():
        findings.add("the store's log complains", line[:200])
    if not store.is_alive():
        findings.add("the store has ended", after)
        return
    _wait_for_rest(store, findings)
    now = seen.end = store.held()
    if is_warm and seen.warm is None:
        seen.warm = now
    warm, before = seen.warm or now, seen.before or now
    if now.memory_bytes > warm.memory_bytes + MOST_GROWTH_BYTES:
        findings.add("the store grows", f"{(now.memory_bytes - warm.memory_bytes) >> 20} MiB {after}")
    if now.descriptors > before.descriptors + MOST_MORE_DESCRIPTORS:
        findings.add("the store keeps descriptors", f"{now.descriptors - before.descriptors} {after}")
    if now.threads > before.threads + MOST_MORE_THREADS:
        findings.add("the store keeps threads", f"{now.threads - before.threads} {after}")
    print(
        f"{seen.packets:>9} packets  {seen.seconds:7.1f} s  {now.memory_bytes >> 20:5} MiB  "
        f"{now.descriptors:4} descriptors  {now.threads:3} threads  {seen.models_handed_over} models  "
        f"{len(findings.first)} kinds of faults",
        flush=True,
    )


def _wait_for_rest(store: WatchedStore, findings: Findings) -> None:
    """Until the honest client is the only one, and the only one that refers to a model."""
    deadline_s = time.monotonic() + PATIENCE_AT_REST_S
    stats = pb.StatsReply()
    with Client(store.endpoint, starts_store=False) as client:
        while time.monotonic() < deadline_s:
            try:
                stats = client.call("Stats", pb.Empty())
            except StoreError as error:
                findings.add("the store tells nothing of itself", str(error))
                return
            if stats.clients <= 1 and stats.references <= 2:  # two while it exchanges one for the next
                return
            time.sleep(0.02)
    findings.add("sessions or references outlive their clients", f"{stats.clients}, {stats.references}")


def _look_at_models(store: WatchedStore, findings: Findings) -> None:
    """An operator releases and evicts all there is; no memory of any model may be left."""
    deadline_s = time.monotonic() + PATIENCE_AT_REST_S
    with Client(store.endpoint, starts_store=False) as client:
        while True:
            try:
                models = client.call("List", pb.Empty()).models
                for model in models:
                    client.call("Pin", pb.PinRequest(address=model.address, pinned=False))
                    client.call("Evict", pb.EvictRequest(address=model.address))
            except StoreError as error:
                if time.monotonic() > deadline_s:
                    findings.add("a model cannot be evicted at the end", str(error))
                    return
            else:
                break
            time.sleep(0.02)
    left = store.files_of_models()
    if left:
        findings.add("memory of models is left although there is none", f"{len(left)}: {left[0]}")
