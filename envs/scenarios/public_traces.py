"""Traces of arrivals that were published, and the form in which a bench replays them.

A file is known by its checksum, whatever it is called. As it was published it is first brought into the form
that is replayed, which keeps the times to 0.1 ms and drops what no replay needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class PublicTrace:
    """Arrivals that were published, and where they are from."""

    sha256: str  # of the file that is replayed
    what: str
    source: str  # repository, path and licence
    cite: str
    published_sha256: str = ""  # of the file there
    replayed: Callable[[str], str] = str  # of that file's text


def _by_minute(text: str) -> str:
    """Of lines `DATE,REQUESTS`, a minute each."""
    counts = [line.split(",")[1] for line in text.splitlines()]
    return _text("minute,requests", [f"{minute},{count}" for minute, count in enumerate(counts)])


def _by_bin(text: str) -> str:
    """Of lines with nothing but a count."""
    return _text("requests", text.splitlines())


def _from_azure(text: str) -> str:
    """Of lines `TIMESTAMP,ContextTokens,GeneratedTokens`, below a header."""
    rows = [line.split(",") for line in text.splitlines()[1:]]
    times_s = [datetime.fromisoformat(row[0]).replace(tzinfo=UTC).timestamp() for row in rows]
    lines = [f"{t - times_s[0]:.4f},{row[1]},{row[2]}" for t, row in zip(times_s, rows, strict=True)]
    return _text("t_s,context_tokens,generated_tokens", lines)


def _text(header: str, lines: list[str]) -> str:
    return "\n".join([header, *lines, ""])


TRACES: Mapping[str, PublicTrace] = {
    "wikipedia-days": PublicTrace(
        "238fd43ab23f153465d159e9ab750dbdb847768cf7f7c67356e17342b0504f59",
        "requests of Wikipedia by the minute, 12 days of September 2007",
        "github.com/dionatrafk/model_evaluation, http_requests_wikipedia/trace1.csv; no licence stated",
        "Urdaneta, Pierre, van Steen: Wikipedia workload analysis for decentralized hosting, 2009",
        "21cca6ee6b61d94337f3585b77467a4ebe728ebfbd96b6a1eab5d8bb567b1d96",
        _by_minute,
    ),
    "wikipedia-hour": PublicTrace(
        "2a9e72ec5c4dbbe8699171347b72662b9dd878c65f5e14f96ac734bddb63c144",
        "the same service by 10 ms, one hour from 2007-09-18 22:15 UTC",
        "github.com/deib-polimi/RAS-real, generators/wiki.1190153705.csv; no licence stated",
        "Urdaneta, Pierre, van Steen: Wikipedia workload analysis for decentralized hosting, 2009",
        "01e5b8d44bb4696bd81ea7c4e857d977b6e498f5d74010fc3e53527666e1bec8",
        _by_bin,
    ),
    "azure-conversation": PublicTrace(
        "b15cdc313463f00b64a497198bbdbe898df0ddf906ee1d14c5b9dc8b39a39db3",
        "19,366 requests of a conversation service, 2023",
        "github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv; CC-BY 4.0",
        "Patel et al.: Splitwise, ISCA 2024",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        _from_azure,
    ),
}


def find_traces(folder: Path, made: Path) -> dict[str, Path]:
    """The public traces among the CSV files of a folder, by name, in the form that is replayed.

    Those that are there as they were published are written to the folder `made`. ValueError if there is no
    such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the one that holds the public traces")
    ready = {trace.sha256: name for name, trace in TRACES.items()}
    published = {trace.published_sha256: name for name, trace in TRACES.items()}
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum in ready:
            found[ready[checksum]] = path
        elif (name := published.get(checksum)) is not None and name not in found:
            made.mkdir(parents=True, exist_ok=True)
            found[name] = made / f"{name}.csv"
            found[name].write_text(TRACES[name].replayed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return found
