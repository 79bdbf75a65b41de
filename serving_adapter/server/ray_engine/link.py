"""How batches travel between the driver and an agent: messages with bytes behind them.

Each worker has a connection.

    driver -> agent   Hello, then RunBatch and SignalWorker
    agent -> driver   WorkerReady or BuildError, then a BatchReply for every batch; Ended if the worker ends

Each member of a unit has one, too. The first member's agent begins with a Meeting, and only that member gets
batches, which it passes on to the others.

The end of a connection is the end of its worker. A connection that ends without a word is the end of the
agent. Ray's own calls would take several milliseconds of processor time each.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from serving_adapter.json_text import parsed
from serving_adapter.server.workers.messages import BatchError, ForkWorker, Message, Wire, parse_zygote_order

MOST_AT_ONCE_BYTES = 4 << 20  # of what is read ahead
MAX_HEADER_BYTES, MAX_DATA_BYTES = 128 << 10, 1 << 31
_SIZES = struct.Struct("!IQ")  # of the header and of the data


class AgentAddress(NamedTuple):
    """Where an agent listens, and the secret that it asks for; Ray brings it to the driver."""

    host: str
    port: int
    secret: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Has an agent fork the worker that this connection is for."""

    secret: str
    order: ForkWorker

    def to_wire(self) -> dict[str, Any]:
        return {"secret": self.secret, "order": self.order.to_wire()}

    @classmethod
    def order_of(cls, wire: Wire, secret: str) -> ForkWorker | None:
        """The order of who knows the secret; None for anybody else."""
        try:
            if not hmac.compare_digest(wire["secret"].encode(), secret.encode()):
                return None
            order = parse_zygote_order(wire["order"])
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        return order if isinstance(order, ForkWorker) else None


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the first member of a unit listens for the others."""

    port: int

    def to_wire(self) -> dict[str, Any]:
        return {"meeting_port": self.port}


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker is gone, and the agent is not."""

    def to_wire(self) -> dict[str, Any]:
        return {"ended": True}


def refusal(what: str, size_bytes: int) -> BatchError | None:
    """Of a batch whose inputs or outputs are too large to travel, which would end the connection."""
    if size_bytes <= MAX_DATA_BYTES:
        return None
    return BatchError(
        f"the {what} of a batch have {size_bytes} bytes, and a node takes and gives at most "
        f"{MAX_DATA_BYTES}; send fewer rows at once"
    )


def send(writer: asyncio.StreamWriter, message: Message, data: bytes = b"") -> None:
    header = json.dumps(message.to_wire(), separators=(",", ":")).encode()
    writer.write(b"".join((_SIZES.pack(len(header), len(data)), header, data)))


async def receive(
    reader: asyncio.StreamReader, most_data_bytes: int = MAX_DATA_BYTES
) -> tuple[Wire, bytes] | None:
    """The next message and the bytes behind it; None when the other side is gone, or sends anything else."""
    try:
        header_bytes, data_bytes = _SIZES.unpack(await reader.readexactly(_SIZES.size))
        if header_bytes > MAX_HEADER_BYTES or data_bytes > most_data_bytes:
            return None
        header = parsed(await reader.readexactly(header_bytes))
        data = await reader.readexactly(data_bytes) if data_bytes else b""
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return None
    return (header, data) if isinstance(header, dict) else None
