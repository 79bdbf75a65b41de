"""When a worker counts as broken: it fails one batch after the other while others answer theirs."""

from __future__ import annotations

from dataclasses import dataclass

ERRORS_WHILE_OTHERS_ANSWER = 8
ERRORS_WHILE_NOBODY_ANSWERS = 32
"""Then the batches may be what is bad, so a worker that has not answered any yet is kept."""


@dataclass
class Health:
    """What one worker made of its batches."""

    has_answered: bool = False
    errors_in_a_row: int = 0
    _answered_before: int = 0  # batches that all workers had answered when the errors began

    def answered(self) -> None:
        self.has_answered, self.errors_in_a_row = True, 0

    def failed(self, answered: int) -> bool:
        """Counts an error; True if the worker is broken. All workers have `answered` so many batches."""
        if self.errors_in_a_row == 0:
            self._answered_before = answered
        self.errors_in_a_row += 1
        answered_meanwhile = answered - self._answered_before
        if answered_meanwhile == 0:
            return self.has_answered and self.errors_in_a_row >= ERRORS_WHILE_NOBODY_ANSWERS
        return min(answered_meanwhile, self.errors_in_a_row) >= ERRORS_WHILE_OTHERS_ANSWER
