"""How the server listens: its port, who may control it, and bounds on what the network may cost it."""

from __future__ import annotations

import errno
import logging
import os
import socket
from pathlib import Path

import grpc

from serving_adapter.address import bracketed, is_loopback_only
from serving_adapter.control_key import KEY_VARIABLE, read_control_key
from serving_adapter.flags.parsing import fail
from serving_adapter.resources import allow_descriptors
from serving_adapter.secret_file import note_open_file
from serving_adapter.server.protocol.keep_alive import GREATEST, KeepAliveOptions

log = logging.getLogger(__name__)

MAX_DESCRIPTORS = 65_536
MAX_CONNECTIONS = 10_000
CALLS_BESIDE_QUEUES = 1024  # of health, statistics and metadata, and those that are being refused
HANDSHAKE_TIMEOUT_MS = 10_000
MAX_IDLE_MS = 15 * 60_000


def most_calls(max_queued: int) -> int:
    """So many calls may wait for their requests, and so many may be served."""
    return 2 * max_queued + CALLS_BESIDE_QUEUES


def grpc_server(max_message_bytes: int, max_calls: int, keep_alive: KeepAliveOptions) -> grpc.aio.Server:
    """A server that bears what clients and meshes do with connections, but not more than it can."""
    descriptors = allow_descriptors(MAX_DESCRIPTORS)
    options = [
        # The handler refuses what is over the limit with a full sentence. grpc's own limit is the backstop.
        ("grpc.max_receive_message_length", 2 * max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # A message of a few kilobytes could unpack to gigabytes. Tensors hardly shrink, so nothing is lost.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.so_reuseport", 0),  # a taken port is an error
        # gRPC cancels calls beyond about 1,000 that its core holds, but our own queue refuses with a reason.
        ("grpc.server.max_pending_requests", 8 * max_calls),
        ("grpc.server.max_pending_requests_hard_limit", 16 * max_calls),
        # Half of the descriptors are left for workers, which take several each when they are replaced.
        ("grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, descriptors // 2)),
        ("grpc.max_concurrent_streams", max_calls),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", MAX_IDLE_MS),
        *keep_alive.of_channels(),
    ]
    options = [(name, min(value, GREATEST)) for name, value in options]
    # One connection opens half of them at most, so however it behaves, others find room.
    return grpc.aio.server(options=options, maximum_concurrent_rpcs=min(2 * max_calls, GREATEST))


def check_free(host: str, port: int) -> None:
    """OSError where the port cannot be had on all addresses of the host that this machine has.

    Who listened on the rest of them would share the name with another server, and with it the clients.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    refusals = []
    for family, _, _, _, address in found:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            refusals.append(error)
    for refusal in refusals:
        if refusal.errno == errno.EADDRINUSE or len(refusals) == len(found):
            raise refusal


def bind(server: grpc.aio.Server, host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> int:
    """Takes the port and returns it; ends the command with a sentence where it cannot be had."""
    address = f"{bracketed(host)}:{port}"
    try:
        check_free(host, port)
    except OSError as error:
        fail(f"cannot listen on {address} ({error.strerror}); choose another --port or --host")
    try:
        if tls_cert is None and tls_key is None:
            return server.add_insecure_port(address)
        if tls_cert is None or tls_key is None:
            fail("TLS needs both --tls-cert and --tls-key")
        note_open_file(tls_key)
        pair = (tls_key.read_bytes(), tls_cert.read_bytes())
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        tls = "" if tls_cert is None else ", or the TLS files are no PEM certificate and its key"
        fail(f"cannot listen on {address}: it is taken{tls}; choose another --port or --host")
    except OSError as error:
        fail(f"cannot read the TLS file {error.filename}: {error.strerror}; give PEM files")


def control_key(file: Path | None) -> str | None:
    """The key to control this server, which what it starts does not inherit; None if it has none."""
    try:
        return read_control_key(file)
    except ValueError as error:
        fail(str(error))
    finally:
        os.environ.pop(KEY_VARIABLE, None)


def check_locked(host: str, key: str | None, has_tls: bool) -> None:
    """Ends the command where everybody on a network could change the configuration."""
    try:
        if is_loopback_only(host):
            return
    except ValueError as error:
        fail(f"--host {error}; give one of this machine, such as 127.0.0.1")
    if key is None:
        fail(
            f"--host {host} lets others reach this server, and everybody who does could change its "
            f"configuration; lock that with --control-key-file FILE (or {KEY_VARIABLE}), or stay on 127.0.0.1"
        )
    if not has_tls:
        log.warning("without --tls-cert and --tls-key, requests and the control key travel unencrypted")
