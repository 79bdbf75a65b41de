"""What can go wrong with a store; every message is one sentence for the user."""

from __future__ import annotations


class StoreError(Exception):
    """The store refused, or could not do what it was asked."""


class UnknownModel(StoreError):
    """No tier and no remote repository has the model."""


class UnknownSession(StoreError):
    """A question names a session that there is not."""


class NoRoom(StoreError):
    """A tier is too small, or full of what is in use; or a client's quota is spent."""


class StoreUnavailable(StoreError):
    """No store answers, and none could be started."""
