"""A client that does not read: a relay of one connection that holds back what the server sends."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 14
SETTLED_BYTES = 1 << 10  # passed on before it pauses, so that the connection is made


class PausedRelay:
    """Passes on all that the client says; of the server the first bytes, and the rest once it is resumed."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._resumed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.resume()
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)

    def resume(self) -> None:
        self._resumed.set()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                self._start(self._pass, client, server, False)
                self._start(self._pass, server, client, True)

    def _pass(self, source: socket.socket, target: socket.socket, pauses: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                passed += len(data)
                if pauses and passed > SETTLED_BYTES:
                    self._resumed.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
