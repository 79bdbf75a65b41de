"""The readers under damaged files: what the corpus has, and mutations of it."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import NamedTuple

from scripts.robustness.fuzz.findings import Findings, no_sentence_about_a_file
from scripts.robustness.fuzz.mutation import mutated
from scripts.robustness.fuzz.readers.every_reader import READERS, Reader

CORPUS = Path(__file__).parents[1] / "corpus" / "readers"
LONGEST_READ_S = 10.0  # of the thread's own processor time
FOUND = "found-"  # so begin the names of files that once showed a fault
OUR_PACKAGES = ("rrl", "serving_adapter")


class Objection(NamedTuple):
    """What is wrong with a reader."""

    what: str  # the kind of fault
    seen: str


def fuzz_readers(
    seed: int, reads: int, seconds: float, findings: Findings, found: Path | None = None
) -> dict[str, int]:
    """Tries each reader so many times (slow ones less), for at most so many seconds; how often each was."""
    logging.disable(logging.WARNING)  # a torn last line is told of
    counts = {}
    for i, (name, reader) in enumerate(READERS.items()):
        end_s = time.monotonic() + seconds / len(READERS)
        samples = sound_files(name)
        rng = Random(seed << 8 | i)
        tried = 0
        for data in stored_files(name):
            tried += _try(name, reader, data, findings, found)
        while samples and tried < reads // reader.slowness and time.monotonic() < end_s:
            tried += _try(name, reader, mutated(rng.choice(samples), rng, samples), findings, found)
        counts[name] = tried
    return counts


def sound_files(name: str, folder: Path = CORPUS) -> list[bytes]:
    """The part of a reader's corpus that is mutated."""
    paths = sorted((folder / name).glob("*"))
    return [path.read_bytes() for path in paths if not path.name.startswith(FOUND)]


def stored_files(name: str, folder: Path = CORPUS) -> list[bytes]:
    """The corpus of a reader: sound files, and those that once showed a fault."""
    return [path.read_bytes() for path in sorted((folder / name).glob("*"))]


def objection(reader: Reader, data: bytes) -> Objection | None:
    """What is wrong with how a reader takes some bytes; None if it reads or refuses them rightly."""
    began_s = time.thread_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            reader.read(data)
    except ValueError as refusal:
        wrong = no_sentence_about_a_file(str(refusal))
        if wrong is not None or not _is_our_own(refusal):
            where = traceback.extract_tb(refusal.__traceback__)[-1].name
            return Objection(wrong or f"refused in Python's words by {where}", str(refusal))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1].name
        return Objection(f"raises {type(error).__name__} in {where}", str(error))
    took_s = time.thread_time() - began_s
    return Objection("takes too long", f"{took_s:.1f} s") if took_s > LONGEST_READ_S else None


def _is_our_own(error: ValueError) -> bool:
    """False for an error of Python's or a library's, which nobody has worded for a reader.

    It is our own if a statement of ours raised it: `int("x")` raises one that no statement raises.
    """
    raised = traceback.extract_tb(error.__traceback__)[-1]
    is_in_our_file = any(f"/{package}/" in raised.filename for package in OUR_PACKAGES)
    return is_in_our_file and (raised.line or "").startswith("raise")


def _try(name: str, reader: Reader, data: bytes, findings: Findings, found: Path | None) -> int:
    wrong = objection(reader, data)
    if wrong is not None and findings.add(f"reader {name}: {wrong.what}") and found is not None:
        print(f"{name}: {wrong.what}: {wrong.seen[:300]}", flush=True)
        (found / name).mkdir(parents=True, exist_ok=True)
        (found / name / f"{FOUND}{hashlib.sha256(data).hexdigest()[:8]}").write_bytes(data)
    return 1
