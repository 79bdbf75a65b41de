"""The server's log: lines on standard error, for the operator."""

from __future__ import annotations

import logging

from serving_adapter import standard_streams

GRPC = "grpc._cython.cygrpc"
ANSWER_TO_AN_ENDED_CALL = "ExecuteBatchError raised in core by servicer method"


def log_to_standard_error() -> None:
    """From now on everything that is logged goes there, but for what is no fault."""
    standard_streams.log_to_standard_error()
    logging.getLogger(GRPC).addFilter(_is_no_late_answer)


def _is_no_late_answer(record: logging.LogRecord) -> bool:
    """gRPC logs a traceback when an answer and its call's deadline or cancellation coincide."""
    return not record.getMessage().startswith(ANSWER_TO_AN_ENDED_CALL)
