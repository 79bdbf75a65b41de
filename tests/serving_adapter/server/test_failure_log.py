"""The server's log tells why requests fail, however many do."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from serving_adapter.server.failure_log import MAX_SENTENCES, QUIET_NS, FailureLog
from serving_adapter.server.protocol.refusals import answers
from serving_adapter.server.server_log import GRPC, log_to_standard_error


def test_a_sentence_is_logged_at_once_and_then_counted_for_a_while(caplog):
    now_ns = 0
    failures = FailureLog("m", lambda: now_ns)
    for _ in range(1000):
        failures.note("the model raised KeyError: 'x'")
    failures.note("another")
    now_ns = QUIET_NS
    failures.note("the model raised KeyError: 'x'")
    assert caplog.messages == [
        "model 'm': the model raised KeyError: 'x'",
        "model 'm': another (and 999 failures like those before)",
        "model 'm': the model raised KeyError: 'x'",
    ]


def test_what_a_client_sent_does_not_rule_the_screen_of_who_reads_the_log(caplog):
    FailureLog("m", lambda: 0).note("the model raised KeyError: \x1b]0;owned\x07\x1b[2J")
    assert caplog.messages == ["model 'm': the model raised KeyError: \ufffd]0;owned\ufffd\ufffd[2J"]


def test_ever_new_sentences_do_not_fill_the_log(caplog):
    failures = FailureLog("m", lambda: 0)
    for number in range(10 * MAX_SENTENCES):
        failures.note(f"number {number} is bad")
    assert len(caplog.messages) == MAX_SENTENCES


def test_a_fault_of_the_server_is_told_as_one(caplog):
    class Context:
        async def abort(self, code: grpc.StatusCode, sentence: str) -> None:
            raise RuntimeError(f"{code.name}: {sentence}")

    async def lookup(service: object, request: object, context: object):
        raise KeyError("key")

    async def call() -> object:
        return await answers(lookup)(None, None, Context())

    with pytest.raises(RuntimeError, match=r"INTERNAL: a fault of the server \(KeyError\('key'\)\)"):
        asyncio.run(call())
    assert caplog.records[0].exc_info is not None


def test_an_answer_to_a_call_that_has_just_ended_is_no_fault(caplog):
    log_to_standard_error()
    log = logging.getLogger(GRPC)
    log.error("ExecuteBatchError raised in core by servicer method [/ModelInfer]")
    log.error("Unexpected [KeyError] raised by servicer method [/ModelInfer]")
    assert caplog.messages == ["Unexpected [KeyError] raised by servicer method [/ModelInfer]"]
