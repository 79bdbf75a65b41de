"""The server under a million calls: rounds of them, and between the rounds a look at the server at rest."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.fuzz.calls import LOAD, SERVICE, FuzzCall
from scripts.robustness.fuzz.findings import Findings, from_json
from scripts.robustness.fuzz.server import two_outputs
from scripts.robustness.fuzz.server.grammar import call
from scripts.robustness.fuzz.server.infer_grammar import TOKEN_ROWS
from scripts.robustness.fuzz.server.oracle import MINILM, AnswerOracle, embeddings
from scripts.robustness.fuzz.server.sender import Sender, Sent, numbered_calls
from scripts.robustness.fuzz.server.watched_server import WatchedServer, watched_server
from serving_adapter.control_key import CONTROL_KEY_HEADER

CORPUS = Path(__file__).parents[1] / "corpus" / "server"
LONGEST_CALLBACK_MS = 50.0
MOST_GROWTH_BYTES = 50 << 20
LOOKS_COMPARED = 3
WARM_UP_SHARE = 0.1  # of the calls; memory is compared with what it was then
PATIENCE_AT_REST_S = 120.0
AT_REST = {
    "max_batch_size": 8,
    "instance_group": [{"count": 1}],
    "parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": "1"}},
    "dynamic_batching": {},
}


@dataclass
class ServerFuzzed:
    """What a run on the server saw, in numbers."""

    requests: int = 0
    right_answers: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    slowest_answer_s: float = 0.0
    longest_callback_ms: float = 0.0
    warm_bytes: int = 0
    end_bytes: int = 0
    seconds: float = 0.0


async def fuzz_server(
    seed: int, first: int, requests: int, round_size: int, seconds: float, findings: Findings
) -> ServerFuzzed:
    """Sends the corpus, then calls of the grammar, for at most so many seconds."""
    seen, began_s = ServerFuzzed(), time.monotonic()
    oracle = AnswerOracle(embeddings(TOKEN_ROWS))
    async with watched_server() as server:
        sender = Sender(server.address, server.rest_url, oracle, findings)
        campaign = _Campaign(server, sender, findings, seen)
        list(server.new_callbacks())  # those of the start are not of any client's making
        await sender.send_all(enumerate(stored_calls(), start=-1_000_000))
        await campaign.look("the corpus")
        end = first + requests
        while first < end and time.monotonic() - began_s < seconds and server.is_alive():
            last = min(end, first + round_size)
            await sender.send_all(
                numbered_calls(partial(call, seed, control_key=server.control_key), first, last)
            )
            seen.requests += last - first
            first = last
            seen.seconds = time.monotonic() - began_s
            await campaign.look(f"{seen.requests} calls", is_warm=seen.requests >= WARM_UP_SHARE * requests)
        await sender.close()
    return seen


def stored_calls(folder: Path = CORPUS) -> list[FuzzCall]:
    """The calls of the corpus."""
    return [from_json(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def least_at_both_ends(looks: Sequence[int]) -> tuple[int, int]:
    """The least of the first three looks and of the last three, or of fewer where they are few.

    Workers are young after some changes and old after others, so that single looks differ by tens of MiB.
    """
    few = max(1, min(LOOKS_COMPARED, len(looks) // 2))
    return min(looks[:few]), min(looks[-few:])


class _Campaign:
    """Looks at the server between rounds."""

    def __init__(self, server: WatchedServer, sender: Sender, findings: Findings, seen: ServerFuzzed) -> None:
        self._server, self._sender, self._findings, self._seen = server, sender, findings, seen
        self._replaced = self._kinds_told = 0
        self._at_rest_bytes: list[int] = []

    async def look(self, after: str, is_warm: bool = False) -> None:
        server, seen = self._server, self._seen
        for line in server.new_complaints():
            self._findings.add("the server's log complains", line[:200])
        await self._look_at_callbacks()
        if not server.is_alive():
            self._findings.add("the server has ended", f"after {after}")
            return
        await self._bring_to_rest()
        replaced = await asyncio.to_thread(server.sum_of, "rrl_worker_replacements")
        if replaced != self._replaced:
            self._findings.add("workers died or hung", f"{replaced - self._replaced} before {after}")
            self._replaced = replaced
        memory = await asyncio.to_thread(server.held)
        if is_warm:
            self._at_rest_bytes.append(memory.memory_bytes)
            seen.warm_bytes, seen.end_bytes = least_at_both_ends(self._at_rest_bytes)
            if seen.end_bytes > seen.warm_bytes + MOST_GROWTH_BYTES:
                grown = (seen.end_bytes - seen.warm_bytes) >> 20
                self._findings.add("the server grows", f"{grown} MiB since it was warm, after {after}")
        seen.codes, seen.kinds = dict(self._sender.codes), dict(self._sender.kinds)
        seen.right_answers, seen.slowest_answer_s = self._sender.right_answers, self._sender.slowest_s
        print(
            f"{after:>15}  {seen.seconds:7.1f} s  {memory.memory_bytes >> 20:5} MiB  "
            f"{memory.descriptors:4} descriptors  {memory.threads:3} threads  "
            f"{memory.processes:2} processes  longest callback {seen.longest_callback_ms:6.1f} ms  "
            f"{seen.right_answers} right answers  "
            f"{len(self._findings.first)} kinds of faults",
            flush=True,
        )
        for found in list(self._findings.first.values())[self._kinds_told :]:
            where = "" if found.call is None else f" ({found.call.kind}, call {found.number})"
            print(f"    {found.what}{where}: {found.seen}", flush=True)
        self._kinds_told = len(self._findings.first)

    async def _bring_to_rest(self) -> None:
        """Puts the configuration of the start in force and waits until nothing is in flight."""
        key = ((CONTROL_KEY_HEADER, self._server.control_key),)
        for model in (MINILM, two_outputs.NAME):
            request = pb.RepositoryModelLoadRequest(model_name=model)
            request.parameters["config"].string_param = json.dumps(AT_REST)
            try:
                await self._sender.raw(LOAD, request.SerializeToString(), key)
            except grpc.aio.AioRpcError as error:
                self._findings.add("the configuration of the start is refused", error.details() or "")
        ready = pb.ServerReadyResponse.FromString(await self._sender.raw(f"{SERVICE}ServerReady", b""))
        if not ready.ready:
            self._findings.add("the server at rest is not ready")
        deadline_s = time.monotonic() + PATIENCE_AT_REST_S
        while await asyncio.to_thread(self._server.sum_of, "rrl_in_flight_request_count"):
            if time.monotonic() > deadline_s:
                self._findings.add("requests stay in flight although nobody sends any")
                return
            await asyncio.sleep(0.05)

    async def _look_at_callbacks(self) -> None:
        """Adds those that took too long, and take as long again when what may have caused them is repeated.

        A machine that is short of memory or processors slows one callback; a call that is at fault, each.
        """
        for told in self._server.new_callbacks():
            self._seen.longest_callback_ms = max(self._seen.longest_callback_ms, told["own_ms"])
            if told["own_ms"] <= LONGEST_CALLBACK_MS:
                continue
            began_ns, ended_ns = told["began_ns"], told["began_ns"] + told["own_ms"] * 1e6
            beside = [s for s in self._sender.sent if s.began_ns < ended_ns and s.ended_ns > began_ns]
            if beside and not await self._blocks_again(beside):
                continue
            largest = max(beside, key=lambda sent: sent.call.size_bytes, default=None)
            seen = f"{told['own_ms']:.0f} ms in {told['callback']}"
            if largest is None:
                self._findings.add("blocks the event loop", seen)
            else:
                seen = f"{largest.call.size_bytes} bytes of {largest.call.kind}: {seen}"
                self._findings.add("blocks the event loop", seen, largest.call, largest.number)

    async def _blocks_again(self, beside: Sequence[Sent]) -> bool:
        await self._sender.send_all(iter([(sent.number, sent.call) for sent in beside]))
        again_ms = [told["own_ms"] for told in self._server.new_callbacks()]
        return max(again_ms, default=0.0) > LONGEST_CALLBACK_MS
