"""The socket by which clients ask, descriptors are handed over, and the store notices that a client is gone.

A client connects, says its token if one is wanted, and is given a session. It may then open and close models
right here, with packets of JSON and descriptors beside them; or over gRPC, naming the session, and only the
descriptors come here. The kernel closes the connection when the client ends, however it ends, and then its
references are given back. Whoever sends anything else is disconnected.

    store: {"session": NAME}                  or {"wants": "token"}, or {"error": SENTENCE}
    client: {"open": {"name": ..., ...}, "id": N}    with a descriptor, if it has opened the file itself
    store: {"id": N, "lease": ..., "version": ..., "found_in": ...}    or {"id": N, "error": SENTENCE}
        with the descriptors of the layout (an OpenReply) and of the segments; if they are many,
        {"lease": ...} with more of them follows
    client: {"close": LEASE}
    client: {"ticket": TICKET}                with a descriptor that an `Open` over gRPC will name
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
from serving_adapter.json_text import parsed
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.opening.account import Account

log = logging.getLogger(__name__)

MAX_TICKETS = 4  # descriptors that a client has sent but not yet opened
MAX_TICKET_CHARACTERS = 64
MAX_QUESTIONS = 64  # of one client at once
PATIENCE_S = 5.0  # with a client that does not answer, or does not read
RETRY_S = 0.05
DESCRIPTORS_PER_PACKET = 64  # the kernel takes 253, but a client may have few left
MAX_RECEIVED_DESCRIPTORS = 253
CREDENTIALS = struct.Struct("iII")  # SO_PEERCRED: pid, uid, gid
BUSY = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS)


class ClientSession:
    """One connection of a client."""

    def __init__(self, sock: socket.socket, account: Account, pid: int) -> None:
        self.sock, self.account, self.pid = sock, account, pid
        self.name = secrets.token_hex(16)
        self.leases: set[str] = set()
        self.questions = 0
        self.process: int | None = None  # a descriptor of the client's process, once `watch` made it
        self._arrived: dict[str, int] = {}
        self._awaited: dict[str, asyncio.Future[int]] = {}

    def watch(self) -> None:
        """Makes sure that the end of the client's process will be noticed; StoreError if it would not be."""
        if self.process is None:
            try:
                self.process = os.pidfd_open(self.pid)
            except (OSError, ValueError):
                raise StoreError(
                    "the store cannot see when this process ends, so it hands out no GPU memory to it; open "
                    "the model on the CPU, or run both in one PID namespace"
                ) from None

    async def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """OSError if the client does not read what it is sent. Descriptors beyond a packet's follow."""
        part, rest = descriptors[:DESCRIPTORS_PER_PACKET], descriptors[DESCRIPTORS_PER_PACKET:]
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                messages.send(self.sock, message, tuple(part))
                break
            except OSError as error:
                if error.errno not in BUSY or time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(RETRY_S)
        if rest:
            await self.send({"lease": message["lease"]}, rest)

    async def descriptor_of(self, ticket: str) -> int:
        """The descriptor that the client sent under a ticket; TimeoutError if none comes.

        StoreError if another call waits for it.
        """
        if ticket in self._arrived:
            return self._arrived.pop(ticket)
        if ticket in self._awaited:
            raise StoreError("another call waits for this ticket; give each call one of its own")
        awaited = self._awaited[ticket] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(awaited, PATIENCE_S)
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
        self.account.close(self._arrived.values())
        self._arrived.clear()
        for awaited in self._awaited.values():
            awaited.cancel()
        _hang_up(self.sock, self.account)


class Sessions:
    """All connections. `on_question` gets what clients ask here, `on_gone` a session that ended.

    A process keeps its account while it has a session, or while leases outlive its last one.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str | None,
        make_account: Callable[[], Account],
        *,
        on_question: Callable[[ClientSession, dict[str, Any], list[int]], None],
        on_gone: Callable[[ClientSession], None],
        max_sessions: int,
        max_sessions_a_process: int,
    ) -> None:
        self._listener, self._token = listener, token
        self._make_account, self._on_question, self._on_gone = make_account, on_question, on_gone
        self._max_sessions, self._max_sessions_a_process = max_sessions, max_sessions_a_process
        self._sessions: dict[str, ClientSession] = {}
        self._greeting: dict[socket.socket, Account] = {}
        self._accounts: dict[int, tuple[Account, int]] = {}
        self._empty_since_s = time.monotonic()
        listener.setblocking(False)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def empty_s(self) -> float:
        """Seconds without any client; 0 while there are any, or leases that outlive their session."""
        has_leases = any(account.leases for account, _ in self._accounts.values())
        return 0.0 if self._sessions or has_leases else time.monotonic() - self._empty_since_s

    def find(self, name: str) -> ClientSession | None:
        return self._sessions.get(name)

    # --- greeting ----------------------------------------------------------------------------------

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the queue stays readable: look again later
                asyncio.get_running_loop().remove_reader(self._listener)
                asyncio.get_running_loop().call_later(RETRY_S, self.start)
            return
        sock.setblocking(False)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, _, _ = CREDENTIALS.unpack(credentials)
        pid = pid or -secrets.randbits(62)  # of another PID namespace: each connection for itself
        account, sessions = self._accounts.get(pid) or (self._make_account(), 0)
        if len(self._sessions) + len(self._greeting) >= self._max_sessions:
            _refuse(sock, account, f"the store has {self._max_sessions} clients, the most it takes")
        elif sessions >= self._max_sessions_a_process:
            _refuse(sock, account, f"this process has {sessions} connections to the store, the most it may")
        else:
            # A place is taken from now on, so a process cannot fill up the greetings either.
            self._accounts[pid] = (account, sessions + 1)
            self._greeting[sock] = account
            if self._token is None:
                self._welcome(sock, account, pid)
            else:
                self._ask_for_token(sock, account, pid)

    def _ask_for_token(self, sock: socket.socket, account: Account, pid: int) -> None:
        loop = asyncio.get_running_loop()
        patience = loop.call_later(PATIENCE_S, self._drop_greeting, sock, pid)
        loop.add_reader(sock, self._read_token, sock, account, pid, patience)
        with contextlib.suppress(OSError):
            messages.send(sock, {"wants": "token"})

    def _read_token(
        self, sock: socket.socket, account: Account, pid: int, patience: asyncio.TimerHandle
    ) -> None:
        try:
            message, descriptors = _received(sock)
        except BlockingIOError:
            return
        patience.cancel()
        asyncio.get_running_loop().remove_reader(sock)
        account.close(descriptors)
        if message is not None and self._is_token(message.get("token")):
            self._welcome(sock, account, pid)
            return
        with contextlib.suppress(OSError):
            messages.send(sock, {"error": "the store wants another token; set RRL_STORE_TOKEN"})
        self._drop_greeting(sock, pid)

    def _is_token(self, token: object) -> bool:
        expected = (self._token or "").encode()
        return isinstance(token, str) and hmac.compare_digest(token.encode(errors="surrogatepass"), expected)

    def _welcome(self, sock: socket.socket, account: Account, pid: int) -> None:
        del self._greeting[sock]
        session = ClientSession(sock, account, pid)
        self._sessions[session.name] = session
        asyncio.get_running_loop().add_reader(sock, self._read, session)
        try:
            messages.send(sock, {"session": session.name})
        except OSError:
            self.end(session)

    def _drop_greeting(self, sock: socket.socket, pid: int) -> None:
        asyncio.get_running_loop().remove_reader(sock)
        _hang_up(sock, self._greeting.pop(sock))
        self._leave(pid)

    # --- questions ---------------------------------------------------------------------------------

    def _read(self, session: ClientSession) -> None:
        try:
            message, descriptors = _received(session.sock)
        except BlockingIOError:
            return
        try:
            if message is None:
                raise ValueError("it is gone, or sends what is no packet of ours")
            if "ticket" in message:
                (descriptor,), ticket = descriptors, message["ticket"]
                if not isinstance(ticket, str):
                    raise ValueError("the ticket is no text")
                session.arrived(ticket[:MAX_TICKET_CHARACTERS], descriptor)
            elif ("open" in message or "close" in message) and session.questions < MAX_QUESTIONS:
                self._on_question(session, message, descriptors)
            else:
                raise ValueError("no such question, or too many of them")
        except ValueError:
            session.account.close(descriptors)
            self.end(session)

    def end(self, session: ClientSession) -> None:
        """Disconnects a client and gives its references back."""
        if self._sessions.pop(session.name, None) is None:
            return
        asyncio.get_running_loop().remove_reader(session.sock)
        session.close()
        self._empty_since_s = time.monotonic()
        self._on_gone(session)
        self._leave(session.pid)

    def _leave(self, pid: int) -> None:
        account, sessions = self._accounts.pop(pid)
        if sessions > 1 or account.leases:
            self._accounts[pid] = (account, sessions - 1)

    def process_gone(self, pid: int) -> None:
        """The leases that outlived its sessions have gone with the process."""
        self._empty_since_s = time.monotonic()
        if self._accounts.get(pid, (None, 1))[1] == 0:
            del self._accounts[pid]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for session in list(self._sessions.values()):
            self.end(session)
        for sock, account in self._greeting.items():
            asyncio.get_running_loop().remove_reader(sock)
            _hang_up(sock, account)


def _refuse(sock: socket.socket, account: Account, reason: str) -> None:
    with contextlib.suppress(OSError):
        messages.send(sock, {"error": reason})
    _hang_up(sock, account)


def _hang_up(sock: socket.socket, account: Account) -> None:
    """The kernel closes what lies unread in the connection too, for which it may have to wait."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    account.file_calls.submit(sock.close)


def _received(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next packet; no message if the client is gone or sent what is no packet of ours.

    Takes all descriptors, since the kernel closes those that are not taken at once.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(
            sock, messages.MAX_MESSAGE_BYTES, MAX_RECEIVED_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        raise
    except OSError:
        return None, []
    message = None
    if not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        with contextlib.suppress(ValueError):
            message = parsed(data)
    return message if isinstance(message, dict) else None, list(descriptors)
