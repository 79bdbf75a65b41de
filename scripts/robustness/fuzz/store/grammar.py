"""What broken and hostile clients say to a model store: packets with descriptors, and calls.

A step of a seed and number is always the same, apart from the names of sessions and leases. A client learns
those while it runs, so the grammar is given what the client knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from scripts.robustness.fuzz.mutation import mutated
from scripts.robustness.fuzz.odd_values import ODD_NAMES, ODD_VERSIONS
from scripts.robustness.fuzz.store.files import KINDS, SOUND
from serving_adapter.model_store.protocol import model_store_pb2 as pb

SERVICE = "/rrl.model_store.ModelStore/"
METHODS = ("Open", "Close", "List", "Pin", "Evict", "Stats")
MODEL = "fuzzed"  # in the store's repository
MISSING_TICKET_S = 0.02  # a client's patience with an `Open` whose descriptor never comes
MOST_DESCRIPTORS = (2, 3, 63, 253)


PLACES = ("name", "version", "namespace", "device", "open", "id", "close", "ticket", "more")
NESTED = "a list in lists"  # stands for one: Python's own writer gives up where a store's reader may not
DEEPEST = 1000


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**300, 1e308, float("nan"), float("inf"), "", "0", "a" * 9000, "\0", "\n\x1b[31m"),
    *("\ud800", "中文", "%s{}", "../../etc/passwd", [], [1, 2], {}, {"open": {}}, *[NESTED] * 6),
)
ODD_PACKETS = (
    *(b"", b"\0", b"null", b"[]", b"{}", b"1", b'"open"', b"\xff\xfe", b"[" * 100_000, b'{"open":' * 9_000),
    *(b'{"open":{}}' + b" " * 131_061, b'{"open":{}}' + b" " * 131_062, b"a" * 190_000, b'{"a":1,"a":2}'),
)


@dataclass(frozen=True)
class Known:
    """What a client has learnt by now."""

    session: str = ""
    leases: tuple[str, ...] = ()


@dataclass(frozen=True)
class StorePacket:
    """A packet on the socket of a session."""

    data: bytes
    descriptors: tuple[str, ...] = ()  # kinds of `store_files`
    is_sound: bool = False  # the store must answer with a model
    kind: str = "packet"
    is_left: bool = False  # the client closes the connection at once


@dataclass(frozen=True)
class StoreCall:
    """A call over gRPC; `ticket` is sent on the session's socket before, with a sound file."""

    method: str
    data: bytes
    kind: str
    ticket: str = ""
    is_sound: bool = False
    cancelled_after_s: float | None = None
    metadata: tuple[tuple[str, str | bytes], ...] = field(default=())


@dataclass(frozen=True)
class StoreBytes:
    """Bytes on a fresh connection to the socket of gRPC, which is then closed."""

    data: bytes
    kind: str = "bytes for gRPC"


Step = StorePacket | StoreCall | StoreBytes


def step(seed: int, number: int, known: Known) -> Step:
    """What a client does in its turn of that number."""
    rng = Random(f"{seed}/{number}")
    drawn = rng.random()
    if drawn < 0.65:
        return _packet(rng, number, known)
    return _call(rng, number, known) if drawn < 0.98 else StoreBytes(_http2(rng))


# --- packets ---------------------------------------------------------------------------------------


def _packet(rng: Random, number: int, known: Known) -> StorePacket:
    drawn = rng.random()
    if drawn < 0.3:
        question = {"open": {"name": rng.choice(("sound", "中文", "a" * 600))}, "id": number}
        return StorePacket(_text(question), (rng.choice(SOUND),), True, "sound open")
    if drawn < 0.4:
        lease = rng.choice((*known.leases, "0" * 16))
        return StorePacket(_text({"close": lease}), kind="sound close")
    descriptors = _descriptors(rng)
    is_left = rng.random() < 0.1
    if drawn < 0.55:  # the question is sound, the file may be anything
        question = {"open": {"name": "any", "namespace": "safetensors"}, "id": number}
        return StorePacket(_text(question), (rng.choice(tuple(KINDS)),), False, "open of any file", is_left)
    if drawn < 0.85:
        if rng.random() < 0.2:
            descriptors = ("sound memory",)
        levels = rng.choice((300, rng.randint(DEEPEST - 40, DEEPEST)))
        data = _text(_odd_message(rng, number, known)).replace(
            b'"%s"' % NESTED.encode(), b"[" * levels + b"]" * levels
        )
        return StorePacket(data, descriptors, False, "odd open", is_left)
    if drawn < 0.95:
        data = mutated(_text(_odd_message(rng, number, known)), rng)
        return StorePacket(data, descriptors, False, "mutated packet", is_left)
    return StorePacket(rng.choice(ODD_PACKETS), descriptors, False, "odd packet", is_left)


def _descriptors(rng: Random) -> tuple[str, ...]:
    kinds = tuple(KINDS)
    drawn = rng.random()
    if drawn < 0.4:
        return ()
    count = 1 if drawn < 0.9 else rng.choice(MOST_DESCRIPTORS)
    return tuple(rng.choice(kinds) for _ in range(count))


def _odd_message(rng: Random, number: int, known: Known) -> dict[str, Any]:
    """Questions with one or more values that no honest client would send."""
    question: Any = {"name": rng.choice((MODEL, "x")), "version": "1", "namespace": "safetensors"}
    message: dict[str, Any] = {"open": question, "id": number}
    for _ in range(rng.randint(1, 3)):
        where = rng.choice(PLACES)
        value = rng.choice((*ODD_VALUES, *ODD_NAMES, *known.leases[:1]))
        if where in PLACES[4:]:
            message[where] = value
        else:
            question[where] = value
    if rng.random() < 0.3:
        del message[rng.choice(tuple(message))]
    return message


def _text(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


# --- calls -----------------------------------------------------------------------------------------


def _call(rng: Random, number: int, known: Known) -> StoreCall:
    drawn = rng.random()
    if drawn < 0.15 and known.session:
        request = pb.OpenRequest(session=known.session, ticket=f"t{number}", address=pb.Address(name="sound"))
        return StoreCall("Open", request.SerializeToString(), "sound Open", request.ticket, True)
    if drawn < 0.2 and known.session:
        request = pb.OpenRequest(session=known.session, address=pb.Address(name=MODEL))
        return StoreCall("Open", request.SerializeToString(), "Open of the repository", is_sound=True)
    if drawn < 0.25:
        return StoreCall(rng.choice(("List", "Stats")), b"", "sound question", is_sound=True)
    method = rng.choice(METHODS)
    data = _request(rng, method, known)
    kind = f"odd {method}"
    if rng.random() < 0.3:
        data, kind = mutated(data, rng), f"mutated {method}"
    if rng.random() < 0.02:
        data, kind = rng.randbytes(rng.choice((65_535, 65_537, 200_000))), "long message"
    if rng.random() < 0.05:
        method, kind = rng.choice((*METHODS, "Opens", "", "中")), "another message"
    impatient = method == "Open" or rng.random() < 0.1
    metadata = ((rng.choice(("authorization", "x-a-bin")), b"\xff" * rng.choice((0, 9))),)
    return StoreCall(
        method,
        data,
        kind,
        cancelled_after_s=rng.choice((0.0, 0.001, MISSING_TICKET_S)) if impatient else None,
        metadata=metadata if metadata[0][0].endswith("-bin") and rng.random() < 0.1 else (),
    )


def _request(rng: Random, method: str, known: Known) -> bytes:
    session = rng.choice((known.session, known.session, "", "0" * 32, *_TEXTS))
    name = rng.choice((MODEL, MODEL, ":file", "sound", "/", *_TEXTS))
    address = pb.Address(
        namespace=rng.choice(("", "safetensors", "safetensors", *_TEXTS)),
        name=name,
        version=rng.choice(("", "1", "2", "7", *ODD_VERSIONS)),
    )
    if method == "Open":
        ticket, device = rng.choice(("", "none", *_TEXTS)), rng.choice(("", "cpu", "cuda:0", *_TEXTS))
        request: Any = pb.OpenRequest(session=session, address=address, device=device, ticket=ticket)
    elif method == "Close":
        lease = rng.choice((*known.leases, "0" * 16, *_TEXTS))
        request = pb.CloseRequest(session=session, lease=lease)
    elif method == "Pin":
        request = pb.PinRequest(address=address, pinned=rng.random() < 0.3)
    elif method == "Evict":
        request = pb.EvictRequest(address=address, tier=rng.choice(("", "host", "disk", "gpu", *_TEXTS)))
    else:
        request = pb.Empty()
    return bytes(request.SerializeToString())


_TEXTS = (*ODD_NAMES, "a" * 30_000, "中" * 9_000, "\0", "\n\n")


def _http2(rng: Random) -> bytes:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
    frame = rng.randbytes(2) + b"\0" + bytes((rng.randrange(12), rng.randrange(64))) + rng.randbytes(40)
    data = rng.choice((b"", b"GET / HTTP/1.1\r\n\r\n", preface, preface + frame * rng.randint(1, 9)))
    return data[: rng.randint(0, len(data))] if rng.random() < 0.5 else data
