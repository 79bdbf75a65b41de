"""Public traces: found by what they hold, and replayed in one form however they were published."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envs.scenarios import public_traces
from envs.scenarios.public_traces import TRACES, PublicTrace, find_traces

MINUTES = "18/09/2007 20:11:43,60\r\n18/09/2007 20:12:43,120\r\n"
REPLAYED = "minute,requests\n0,60\n1,120\n"


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty one, and two lines of the trace by the minute as the only one that is known."""
    real = TRACES["wikipedia-days"]
    known = PublicTrace(checksum(REPLAYED), "two minutes", "here", "nobody", checksum(MINUTES), real.replayed)
    monkeypatch.setattr(public_traces, "TRACES", {"short": known})
    found = tmp_path / "traces"
    found.mkdir()
    (found / "other.csv").write_text("minute,requests\n0,61\n")
    return found


def test_a_trace_is_known_by_what_it_holds(folder: Path, tmp_path: Path) -> None:
    (folder / "any name.csv").write_text(REPLAYED)
    assert find_traces(folder, tmp_path / "made") == {"short": folder / "any name.csv"}
    assert not (tmp_path / "made").exists()


def test_as_it_was_published_it_is_brought_into_the_form_that_is_replayed(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "trace1.csv").write_bytes(MINUTES.encode())
    found = find_traces(folder, tmp_path / "made")
    assert found == {"short": tmp_path / "made" / "short.csv"}
    assert found["short"].read_bytes() == REPLAYED.encode()


@pytest.mark.parametrize(
    ("name", "published", "replayed"),
    [
        ("wikipedia-days", MINUTES, REPLAYED),
        ("wikipedia-hour", "4\r\n15\r\n", "requests\n4\n15\n"),
        (
            "azure-conversation",
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
            "2023-11-16 18:15:50.9951690,396,109",
            "t_s,context_tokens,generated_tokens\n0.0000,374,44\n4.3146,396,109\n",
        ),
    ],
)
def test_each_form(name: str, published: str, replayed: str) -> None:
    assert TRACES[name].replayed(published) == replayed


def test_checksums_are_whole() -> None:
    assert all(len(each.sha256) == len(each.published_sha256) == 64 for each in TRACES.values())
