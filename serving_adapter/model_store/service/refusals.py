"""What a client is told of a question that cannot be answered: a code, and one sentence."""

from __future__ import annotations

import logging
from typing import NamedTuple

from grpc import StatusCode

from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel, UnknownSession
from serving_adapter.sentences import bounded

log = logging.getLogger(__name__)

CODES: dict[type[Exception], StatusCode] = {
    UnknownSession: StatusCode.UNAUTHENTICATED,
    UnknownModel: StatusCode.NOT_FOUND,
    NoRoom: StatusCode.RESOURCE_EXHAUSTED,
    StoreError: StatusCode.FAILED_PRECONDITION,
    ValueError: StatusCode.INVALID_ARGUMENT,
    OSError: StatusCode.INVALID_ARGUMENT,
}
"""The first that an error is of tells."""


class Refusal(NamedTuple):
    code: StatusCode
    sentence: str


def refusal(error: Exception, question: str) -> Refusal:
    """What to tell of an error; one that nobody foresaw goes to the log, and its words stay there."""
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return Refusal(code, bounded(str(error)))
    log.error("%s was not answered", question, exc_info=error)
    return Refusal(StatusCode.INTERNAL, f"the store failed at {question}; its log tells why")
