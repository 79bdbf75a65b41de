"""Bytes that are nearly right: small damages to a message or a file, drawn by a seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MOST_DAMAGES = 4
LONGEST_RUN = 64  # bytes that one damage repeats, copies or removes
LONGEST_BYTES = 1 << 20  # what is longer is cut

# Lengths and counts at which programs go wrong, as protobuf's variable-length integers.
ODD_NUMBERS = (
    *(b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff\xff\x03", b"\xff" * 4 + b"\x07", b"\xff" * 4 + b"\x0f"),
    *(b"\xff" * 8 + b"\x7f", b"\xff" * 9 + b"\x01", b"\xff" * 10),
)
# Words at which readers of text go wrong.
ODD_WORDS = (
    *(b"NaN", b"nan", b"Infinity", b"-Infinity", b"+Inf", b"1e999", b"-1", b"-0", b"1e-400", b"0x10"),
    *(b"null", b"true", b"[]", b"{}", b"{", b"}", b"[", b"]", b'"', b"'", b",", b":", b"=", b"#", b"\\"),
    *(
        b"\n",
        b"\r\n",
        b"\t",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"\x1b[31m",
        b"\xed\xa0\x80",
    ),
    *(b"9" * 400, b"[" * 3000, b'{"a":' * 3000, b"&a [*a]", b"<<: *a", b"!!python/object:x", b"--- "),
)


def mutated(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """A copy of `data` with a few damages; parts of `others` may be spliced in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, MOST_DAMAGES)):
        rng.choice(_DAMAGES)(changed, rng, others)
    return bytes(changed[:LONGEST_BYTES])


def _flip(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _replace(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _insert_random(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 8))


def _insert_number(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at : at + rng.randint(0, 2)] = rng.choice(ODD_NUMBERS)


def _insert_word(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at : at + rng.choice((0, 0, 1, 4))] = rng.choice(ODD_WORDS)


def _remove(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, LONGEST_RUN)]


def _cut(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    del data[rng.randint(0, len(data)) :]


def _repeat(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = data[at : at + rng.randint(1, LONGEST_RUN)] * rng.choice((1, 1, 2, 50))


def _swap_lines(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    lines = bytes(data).split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    data[:] = b"\n".join(lines)


def _splice(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    if others:
        other = rng.choice(others)
        start = rng.randint(0, len(other))
        at = rng.randint(0, len(data))
        data[at : at + rng.randint(0, LONGEST_RUN)] = other[start : start + rng.randint(1, 4 * LONGEST_RUN)]


_DAMAGES: tuple[Callable[[bytearray, Random, Sequence[bytes]], None], ...] = (
    _flip,
    _replace,
    _insert_random,
    _insert_number,
    _insert_word,
    _remove,
    _cut,
    _repeat,
    _swap_lines,
    _splice,
)
