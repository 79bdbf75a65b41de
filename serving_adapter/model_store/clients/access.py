"""The way to a store: a connection with a session on it, or one sentence why there is none.

A store is started where none runs, and a new one where the old one died.
"""

from __future__ import annotations

import socket
import time

from serving_adapter import messages
from serving_adapter.model_store.clients.starting import one_starter, start_store
from serving_adapter.model_store.endpoint import Endpoint, make_folder
from serving_adapter.model_store.errors import StoreError, StoreUnavailable

ANSWER_TIMEOUT_S = 10.0  # for questions that the store answers without reading a model
START_TIMEOUT_S = 60.0
RETRY_S = 0.01

Session = tuple[socket.socket, str]
"""A connection, and what the store calls it."""


class StoreAccess:
    """Reaches the store of an endpoint."""

    def __init__(self, endpoint: Endpoint, token: str | None, starts_store: bool) -> None:
        self._endpoint, self._token, self._starts_store = endpoint, token, starts_store
        self.give_up_s: float | None = None  # on the monotonic clock: whoever can do without waits until then

    def session(self) -> Session:
        """A new one; StoreUnavailable, or another StoreError, where there can be none."""
        try:
            found = self._greeted()
            if found is None and not self._starts_store:
                raise self.absent()
            return self._started() if found is None else found
        except OSError as error:
            raise self.silent(error.strerror or error) from None

    def left_s(self, seconds: float) -> float:
        """So long, but not beyond `give_up_s`; StoreUnavailable if that is over."""
        if self.give_up_s is None:
            return seconds
        left_s = self.give_up_s - time.monotonic()
        if left_s <= 0:
            raise self.silent("it took too long before")
        return min(seconds, left_s)

    def silent(self, reason: object) -> StoreUnavailable:
        return StoreUnavailable(f"the store at {self._endpoint.folder} does not answer: {reason}")

    def absent(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"no model store runs at {self._endpoint.folder}; start one with: rrl-store serve"
        )

    def _started(self) -> Session:
        deadline_s = time.monotonic() + self.left_s(START_TIMEOUT_S)
        make_folder(self._endpoint)
        with one_starter(self._endpoint, deadline_s):
            # Somebody else may have started one while we waited for our turn, or be doing so now.
            while (found := self._greeted()) is None:
                if time.monotonic() > deadline_s:
                    raise self.silent("it does not start")
                if not start_store(self._endpoint, self._token, self.left_s(START_TIMEOUT_S)):
                    time.sleep(RETRY_S)
            return found

    def _greeted(self) -> Session | None:
        """None if no store listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._endpoint.check()
            sock.settimeout(self.left_s(ANSWER_TIMEOUT_S))
            _connect_in_turn(sock, str(self._endpoint.descriptors))
            answer = messages.receive(sock)
            if answer is not None and "wants" in answer:
                messages.send(sock, {"token": self._token})
                answer = messages.receive(sock)
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            sock.close()
            return None
        except PermissionError:
            sock.close()
            raise StoreError(f"the store at {self._endpoint.folder} belongs to another user") from None
        except BaseException:
            sock.close()
            raise
        if answer is None or "error" in answer:
            sock.close()
            if answer is None:
                return None
            raise StoreError(str(answer["error"]))
        return sock, str(answer["session"])


def _connect_in_turn(sock: socket.socket, path: str) -> None:
    """Waits while more clients are at the door than the store has let in yet; TimeoutError at last."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            sock.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise TimeoutError("it has let nobody in") from None
            time.sleep(RETRY_S)
