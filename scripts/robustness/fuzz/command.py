"""`python -m scripts.robustness fuzz`: calls and files from grammars, most of them broken.

First the server, then the sockets of the model store, then the readers of files and pages. A fault is told
once a kind, with the number of the call that showed it. `--first N --requests 1` sends that one again, and
`--first N --packets 1` one to the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.robustness import figures
from scripts.robustness.fuzz.findings import Findings
from scripts.robustness.fuzz.readers.run import fuzz_readers
from scripts.robustness.fuzz.server.run import ServerFuzzed, fuzz_server
from scripts.robustness.fuzz.store.run import StoreFuzzed, fuzz_store

FOR_EVER_S = 1e9


@dataclass(frozen=True)
class Options:
    """Sends broken and sound requests to a real server, and broken files to the readers."""

    requests: int = 1_000_000
    """Calls to the server."""
    packets: int = 100_000
    """Packets and calls to a model store."""
    reads: int = 100_000
    """Damaged files for each reader."""
    seed: int = 0
    """Call number i of a seed is always the same."""
    first: int = 0
    """Number of the first call."""
    round_size: int = 20_000
    """Calls between two looks at the server at rest."""
    seconds: float = FOR_EVER_S
    """Ends the calls to the server, then those to the store, and then the reads, each after so long."""
    out: Path | None = None
    """JSON file that the figures are appended to."""
    found: Path = Path("runs/fuzz-found")
    """Folder for the calls and files that showed a fault."""

    def __post_init__(self) -> None:
        if min(self.requests, self.packets, self.reads, self.seed, self.first) < 0 or self.round_size < 1:
            raise ValueError(
                "--requests, --packets, --reads, --seed and --first must be at least 0, --round-size 1"
            )


def run(options: Options) -> bool:
    """Prints what was found; True if that is nothing."""
    findings = Findings()
    seen = ServerFuzzed()
    if options.requests:
        seen = asyncio.run(
            fuzz_server(
                options.seed, options.first, options.requests, options.round_size, options.seconds, findings
            )
        )
    store = StoreFuzzed()
    if options.packets:
        store = fuzz_store(
            options.seed, options.first, options.packets, options.round_size, options.seconds, findings
        )
    reads = fuzz_readers(options.seed, options.reads, options.seconds, findings, options.found)
    findings.store(options.found)
    for line in findings.lines():
        print(line)
    row = figures_of(seen, reads, len(findings.first))
    if options.out is not None:
        of_parts = {"seed": options.seed, "reads": reads, "store": asdict(store)}
        figures.append(options.out, "fuzz", row | asdict(seen) | of_parts)
    print(figures.markdown([row]))
    return not findings.first


def figures_of(seen: ServerFuzzed, reads: Mapping[str, int], faults: int) -> dict[str, Any]:
    """The run as a row of docs/results/reliability.md."""
    return {
        "calls": seen.requests,
        "right answers": seen.right_answers,
        "damaged files": sum(reads.values()),
        "kinds of faults": faults,
        "slowest answer s": round(seen.slowest_answer_s, 1),
        "longest callback ms": round(seen.longest_callback_ms),
        "grown MiB": round((seen.end_bytes - seen.warm_bytes) / 2**20),
        "minutes": round(seen.seconds / 60, 1),
    }
