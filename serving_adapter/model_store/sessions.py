"""The socket that hands descriptors over, and by which the store notices that a client is gone.

A client connects, says its token and is given a session; `Open` and `Close` over gRPC name it. The kernel
closes the connection when the client ends, however it ends, and then its references are given back.
Packets are JSON with descriptors beside them; whoever sends anything else is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from serving_adapter import messages
from serving_adapter.model_store.store import Account

log = logging.getLogger(__name__)

MAX_TICKETS = 4  # descriptors that a client has sent but not yet opened
TICKET_TIMEOUT_S = 5.0
DESCRIPTORS_A_PACKET = 250  # the kernel takes 253
CREDENTIALS = struct.Struct("iII")  # SO_PEERCRED: pid, uid, gid


class Session:
    """One connection of a client."""

    def __init__(self, sock: socket.socket, account: Account, pid: int) -> None:
        self.sock, self.account, self.pid = sock, account, pid
        self.name = secrets.token_hex(16)
        self.leases: set[str] = set()
        self._arrived: dict[str, int] = {}
        self._awaited: dict[str, asyncio.Future[int]] = {}

    def send_descriptors(self, lease: str, descriptors: Sequence[int]) -> None:
        """OSError if the client does not read what it is sent."""
        for start in range(0, len(descriptors), DESCRIPTORS_A_PACKET):
            part = tuple(descriptors[start : start + DESCRIPTORS_A_PACKET])
            messages.send(self.sock, {"lease": lease}, part)

    async def descriptor_of(self, ticket: str) -> int:
        """The descriptor that the client sent under a ticket; TimeoutError if none comes."""
        if ticket in self._arrived:
            return self._arrived.pop(ticket)
        awaited = self._awaited[ticket] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(awaited, TICKET_TIMEOUT_S)
        finally:
            self._awaited.pop(ticket, None)

    def arrived(self, ticket: str, descriptor: int) -> None:
        """ValueError if the client sends more than it opens."""
        awaited = self._awaited.pop(ticket, None)
        if awaited is not None and not awaited.done():
            awaited.set_result(descriptor)
        elif len(self._arrived) < MAX_TICKETS and ticket not in self._arrived:
            self._arrived[ticket] = descriptor
        else:
            raise ValueError("too many tickets")

    def close(self) -> None:
        for descriptor in self._arrived.values():
            os.close(descriptor)
        self._arrived.clear()
        for awaited in self._awaited.values():
            awaited.cancel()
        self.sock.close()


class Sessions:
    """All connections. `on_gone` is told of a session that ended."""

    def __init__(
        self,
        listener: socket.socket,
        token: str | None,
        make_account: Callable[[], Account],
        on_gone: Callable[[Session], None],
        *,
        max_sessions: int,
        max_sessions_a_process: int,
    ) -> None:
        self._listener, self._token, self._make_account, self._on_gone = (
            listener,
            token,
            make_account,
            on_gone,
        )
        self._max_sessions, self._max_sessions_a_process = max_sessions, max_sessions_a_process
        self._sessions: dict[str, Session] = {}
        self._greeting: set[socket.socket] = set()
        self._accounts: dict[int, tuple[Account, int]] = {}
        self._empty_since_s = time.monotonic()
        listener.setblocking(False)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def empty_s(self) -> float:
        """For how long there has been no client; 0 while there are any."""
        return 0.0 if self._sessions else time.monotonic() - self._empty_since_s

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def find(self, name: str) -> Session | None:
        return self._sessions.get(name)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # the client is gone already, or there are no descriptors left for now
            log.debug("no connection accepted: %s", error)
            return
        sock.setblocking(False)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, _, _ = CREDENTIALS.unpack(credentials)
        account, sessions = self._accounts.get(pid) or (self._make_account(), 0)
        if len(self._sessions) + len(self._greeting) >= self._max_sessions:
            self._refuse(sock, f"the store has {self._max_sessions} clients, the most it takes")
        elif sessions >= self._max_sessions_a_process:
            self._refuse(sock, f"this process has {sessions} connections to the store, the most it may")
        else:
            # A place is taken from now on, so a process cannot fill up the greetings either.
            self._accounts[pid] = (account, sessions + 1)
            self._greeting.add(sock)
            loop = asyncio.get_running_loop()
            patience = loop.call_later(TICKET_TIMEOUT_S, self._drop_greeting, sock, pid)
            loop.add_reader(sock, self._greet, sock, account, pid, patience)

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        with contextlib.suppress(OSError):
            messages.send(sock, {"error": reason})
        sock.close()

    def _greet(self, sock: socket.socket, account: Account, pid: int, patience: asyncio.TimerHandle) -> None:
        """The first packet: it may carry the token."""
        patience.cancel()
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        message, descriptors = _received(sock)
        for descriptor in descriptors:
            os.close(descriptor)
        token = message.get("token") if message else None
        if message is None or not self._may_enter(token):
            if message is not None:
                with contextlib.suppress(OSError):
                    messages.send(sock, {"error": "the store wants another token; set RRL_STORE_TOKEN"})
            self._drop_greeting(sock, pid)
            return
        self._greeting.discard(sock)
        session = Session(sock, account, pid)
        self._sessions[session.name] = session
        loop.add_reader(sock, self._read, session)
        try:
            messages.send(sock, {"session": session.name})
        except OSError:
            self.end(session)

    def _may_enter(self, token: object) -> bool:
        if self._token is None:
            return True
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())

    def _drop_greeting(self, sock: socket.socket, pid: int) -> None:
        asyncio.get_running_loop().remove_reader(sock)
        self._greeting.discard(sock)
        sock.close()
        self._leave(pid)

    def _read(self, session: Session) -> None:
        message, descriptors = _received(session.sock)
        if message is None:
            for descriptor in descriptors:
                os.close(descriptor)
            self.end(session)
            return
        try:
            (descriptor,) = descriptors
            session.arrived(str(message["ticket"])[:64], descriptor)
        except (ValueError, KeyError):
            for descriptor in descriptors:
                os.close(descriptor)
            self.end(session)

    def end(self, session: Session) -> None:
        """Disconnects a client and gives its references back."""
        if self._sessions.pop(session.name, None) is None:
            return
        asyncio.get_running_loop().remove_reader(session.sock)
        session.close()
        self._leave(session.pid)
        self._empty_since_s = time.monotonic()
        self._on_gone(session)

    def _leave(self, pid: int) -> None:
        account, sessions = self._accounts.pop(pid)
        if sessions > 1:
            self._accounts[pid] = (account, sessions - 1)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for session in list(self._sessions.values()):
            self.end(session)
        for sock in self._greeting:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()


def _received(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next packet; None if the client is gone or sent what is no packet of ours."""
    try:
        message, descriptors = messages.receive_with_descriptors(sock)
    except BlockingIOError:
        return {}, []
    except (OSError, ValueError):
        return None, []
    if message is not None and not isinstance(message, dict):
        message = None
    return message, descriptors
