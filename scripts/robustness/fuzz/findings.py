"""What a fuzz run found: each kind of fault once, with the call that showed it, ready to be run again."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.robustness.fuzz.calls import Fate, FuzzCall, RestCall

LONGEST_SENTENCE = 2100  # characters
LONGEST_STORED_BYTES = 20_000
# What a text has when a program speaks to itself.
_PROGRAMS_WORDS = re.compile(
    r"Unexpected <class|Traceback|<class '|object at 0x|\b[A-Z]\w*(Error|Exception)\("
)
# What a client need not know of: in a refused file's sentence it may stand, to tell what is damaged.
_ERRORS = re.compile(r"Exception (calling|deserializing|iterating)|\b[A-Z]\w*(Error|Exception)\b")
_VARIES = re.compile(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|-?\d[\d.e+]*|\[[^\]]*\]")


class Found(NamedTuple):
    """One fault of one call."""

    what: str
    seen: str  # what the server said, shortened
    call: FuzzCall | None
    number: int | None  # of the call, in its run


class Findings:
    """Faults by kind: those whose words differ in names and numbers alone are of one kind."""

    def __init__(self) -> None:
        self.first: dict[str, Found] = {}
        self.counts: Counter[str] = Counter()

    def add(self, what: str, seen: str = "", call: FuzzCall | None = None, number: int | None = None) -> bool:
        """Notes a fault; True if it is the first of its kind."""
        key = f"{_VARIES.sub('?', what)} | {_VARIES.sub('?', seen)[:100]}"
        self.counts[key] += 1
        if key in self.first:
            return False
        self.first[key] = Found(what, seen[:300], call, number)
        return True

    def lines(self) -> Iterator[str]:
        for key, count in self.counts.most_common():
            found = self.first[key]
            where = "" if found.call is None else f" ({found.call.kind}, call {found.number})"
            yield f"{count} x {found.what}{where}: {found.seen}"

    def store(self, folder: Path) -> None:
        """Writes the call of each kind into a file that the corpus takes."""
        folder.mkdir(parents=True, exist_ok=True)
        for i, found in enumerate(self.first.values()):
            if found.call is not None and found.call.size_bytes <= LONGEST_STORED_BYTES:
                (folder / f"found-{i:03}.json").write_text(as_json(found.call, found.what), encoding="utf-8")


def no_sentence(details: str | None) -> str | None:
    """What is wrong with the text of a refusal by the server; None if it is a sentence for a client."""
    if not details:
        return "refused without a sentence"
    if len(details) > LONGEST_SENTENCE:
        return "refused with a text that is too long"
    in_programs_words = _PROGRAMS_WORDS.search(details) or _ERRORS.search(details)
    return "refused in a program's words" if in_programs_words else None


def no_sentence_about_a_file(text: str) -> str | None:
    """The same of a file's refusal, which may quote as much of the file as it likes."""
    if not text:
        return "refused without a sentence"
    return "refused in a program's words" if _PROGRAMS_WORDS.search(text) else None


def as_json(call: FuzzCall, what: str) -> str:
    values = {
        "found": what,
        "method": call.method,
        "kind": call.kind,
        "data": b64encode(call.data).decode(),
        "metadata": [[k, v if isinstance(v, str) else v.decode("latin-1")] for k, v in call.metadata],
    }
    if isinstance(call, RestCall):
        http: list[object] = [call.verb, call.path, call.headers, b64encode(call.body).decode()]
        return json.dumps(values | {"http": http}, indent=1) + "\n"
    return json.dumps(values, indent=1) + "\n"


def from_json(text: str) -> FuzzCall:
    """A stored call; whatever is right of its answers is accepted."""
    values = json.loads(text)
    metadata = tuple((k, v.encode("latin-1") if k.endswith("-bin") else v) for k, v in values["metadata"])
    stored = (values["method"], b64decode(values["data"]), Fate.EITHER, values["kind"], metadata)
    if "http" not in values:
        return FuzzCall(*stored)
    verb, path, headers, body = values["http"]
    return RestCall(*stored, verb=verb, path=path, headers=tuple(map(tuple, headers)), body=b64decode(body))
