"""Pings of gRPC connections: how often the server sends some, and how many of a client's it bears.

The options have the names and the units of Triton's. The defaults differ. Our own pings keep balancers from
forgetting a connection, and find those that were forgotten. Clients and sidecars may ping as they like,
beside a lone long request too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

GREATEST = 2**31 - 1  # of gRPC's options, which are C's int
AT_LEAST_ONE = ("grpc_keepalive_time", "grpc_keepalive_timeout")


@dataclass(frozen=True)
class KeepAliveOptions:
    """The options of `rrl-serve` about pings."""

    grpc_keepalive_time: int = 60_000
    """Milliseconds of silence after which the server pings a connection over gRPC; 2147483647 is never."""
    grpc_keepalive_timeout: int = 20_000
    """Milliseconds that the answer to such a ping may take before the connection is given up."""
    grpc_keepalive_permit_without_calls: Literal[0, 1] = 1
    """1: connections without calls are pinged too, and may ping."""
    grpc_http2_max_pings_without_data: int = 0
    """Pings that the server sends between two messages at most; 0 is any number."""
    grpc_http2_min_recv_ping_interval_without_data: int = 0
    """Milliseconds that a client must let pass between two pings without a message between them."""
    grpc_http2_max_ping_strikes: int = 0
    """Pings that come sooner, after which a connection is closed; 0 is any number."""

    def check_keep_alive(self) -> None:
        """ValueError, in one sentence, for a number that gRPC does not take."""
        for name in (field.name for field in fields(KeepAliveOptions)):
            least, value = (1 if name in AT_LEAST_ONE else 0), getattr(self, name)
            if not least <= value <= GREATEST:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} must be a whole number from {least} to {GREATEST}, got {value}")

    def of_channels(self) -> list[tuple[str, int]]:
        """The same as gRPC calls it."""
        return [
            ("grpc.keepalive_time_ms", self.grpc_keepalive_time),
            ("grpc.keepalive_timeout_ms", self.grpc_keepalive_timeout),
            ("grpc.keepalive_permit_without_calls", self.grpc_keepalive_permit_without_calls),
            ("grpc.http2.max_pings_without_data", self.grpc_http2_max_pings_without_data),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                self.grpc_http2_min_recv_ping_interval_without_data,
            ),
            ("grpc.http2.max_ping_strikes", self.grpc_http2_max_ping_strikes),
        ]
