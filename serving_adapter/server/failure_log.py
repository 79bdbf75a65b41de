"""Tells the server's log why requests fail without filling it: a sentence once in a while, then a count."""

from __future__ import annotations

import logging

from serving_adapter.sentences import printable
from serving_adapter.server.surroundings import Clock

log = logging.getLogger(__name__)

QUIET_NS = 10_000_000_000
"""For so long a sentence is only counted after it was logged."""
MAX_SENTENCES = 100  # kept in mind; a sentence may hold a value, so there is no end of different ones


class FailureLog:
    """The failures of one model."""

    def __init__(self, model: str, now_ns: Clock) -> None:
        self._model, self._now_ns = model, now_ns
        self._logged_ns: dict[str, int] = {}
        self._left_out = 0

    def note(self, sentence: str) -> None:
        """A model may have put into it what a client sent."""
        sentence = printable(sentence)
        now_ns = self._now_ns()
        for known, at_ns in list(self._logged_ns.items()):  # the oldest come first
            if now_ns - at_ns < QUIET_NS:
                break
            del self._logged_ns[known]
        if sentence in self._logged_ns or len(self._logged_ns) == MAX_SENTENCES:
            self._left_out += 1
            return
        self._logged_ns[sentence] = now_ns
        others = f" (and {self._left_out} failures like those before)" if self._left_out else ""
        log.warning("model %r: %s%s", self._model, sentence, others)
        self._left_out = 0
