"""What must hold once all clients have their end: of each request, and of the statistics.

A request that does no harm is answered, with its own rows. It may fail where `max_attempts` workers ended
with it, where the queue was full, or where the server was told to end. A harmful one fails with a reason,
unless an approximation answers it. Nobody waits for ever.
"""

from __future__ import annotations

import math
from typing import Any

import grpc

from scripts.robustness.simulated_front.checked_models import HARMLESS, RAISED, RAISES
from scripts.robustness.simulated_front.clients import CallEnding, SimulatedClient
from scripts.robustness.simulated_front.scenario import FrontScenario
from serving_adapter.server.requests import EXACT

MAX_SENTENCE_CHARACTERS = 5000
UNREADABLE = ("Traceback", "<class", "object at 0x", "NoneType")


def wrong_with_client(
    client: SimulatedClient, scenario: FrontScenario, max_attempts: int, ending: bool
) -> str:
    """What is wrong with the end of one request, in a sentence; empty where nothing is."""
    who = f"request {client.number}"
    match client.ending:
        case None:
            return f"{who} has no answer and no error"
        case CallEnding.ANSWERED:
            if client.wrong:
                return f"{who} got a wrong answer: {client.wrong}"
            if client.request.deed not in HARMLESS and client.origin == EXACT:
                return f"{who} got an exact answer that no worker can have given"
        case CallEnding.GAVE_UP:
            if not client.gave_up_step and not ending:
                return f"{who} was cancelled, but its client had not given up"
        case _:
            assert client.error is not None
            return _wrong_with_error(client, client.error, scenario, max_attempts, ending)
    return ""


def _wrong_with_error(
    client: SimulatedClient, error: Any, scenario: FrontScenario, max_attempts: int, ending: bool
) -> str:
    who, sentence = f"request {client.number}", error.sentence
    if not 10 < len(sentence) < MAX_SENTENCE_CHARACTERS or any(text in sentence for text in UNREADABLE):
        return f"{who} failed with what is no sentence: {sentence!r}"
    if error.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        small = scenario.max_queue_size < len(scenario.requests)
        full = small or math.isfinite(scenario.max_held_bytes)
        return "" if full else f"{who} was refused for a full queue, which cannot have been: {sentence}"
    if ending or client.losses >= max_attempts:
        return ""
    if error.code == grpc.StatusCode.INTERNAL and client.request.deed not in HARMLESS:
        if client.request.deed == RAISES and RAISED not in sentence and not client.losses:
            return f"{who} was not told what its model raised: {sentence}"
        return ""
    return f"{who} failed for no fault of its own, after {client.losses} lost workers: {error}"


def wrong_with_statistics(clients: list[SimulatedClient], statistics: Any) -> str:
    """What does not add up, in a sentence; `statistics` are those of the protocol."""
    received = sum(client.was_taken for client in clients)
    success, failure = statistics.inference_stats.success.count, statistics.inference_stats.fail.count
    answered = sum(client.ending is CallEnding.ANSWERED for client in clients)
    gave_up = sum(client.ending is CallEnding.GAVE_UP for client in clients)
    if success + failure != received:
        return f"of {received} requests {success} succeeded and {failure} failed by the statistics"
    if not answered <= success <= answered + gave_up:
        return f"{success} requests succeeded by the statistics, but {answered} were answered"
    return ""
