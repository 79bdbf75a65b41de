"""The objective `capacity`: what the start bears is searched before a run, and what it leaves after it.

No interval under one load shows how much more would be borne. So the run tunes at a load that the start only
just bears within the limit, where an interval tells the most about that. The belief replays it faster. The
figures that a person is told are those of the two searches, which send the loads themselves.
"""

from __future__ import annotations

import json
from dataclasses import replace

from rich.console import Console

from rrl.command_line.embedded.embedded import Embedded
from rrl.journal import has_begun
from rrl.objective import rate_in_words
from rrl.records import Header
from rrl.tuning.stop import Stopped
from rrl.views.capacity_found import KEPT, START, path_of

# Of the rate that the start bears within the limit: there the limit holds in most intervals.
SHARE_TUNED_AT = 0.9


def before_run(embedded: Embedded, header: Header, rate_per_s: float | None, console: Console) -> None:
    """Searches what the start bears, unless an earlier part of the run did, and sets the rate to tune at.

    Such a part has left a journal: without one, what was found there is of another run, with other options.
    What was found of the configuration that such a part left is removed: the run may leave another.
    """
    assert header.slo_p95_ms is not None
    path = path_of(embedded.folder, START)
    if not has_begun(embedded.folder):
        path.unlink(missing_ok=True)
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
    else:
        console.print("searching the highest rate that the start bears ...")
        embedded.folder.mkdir(parents=True, exist_ok=True)
        found = embedded.find_capacity(START, header.slo_p95_ms, header.interval_s)
    if not found["level"]:
        raise ValueError(
            f"the start bears no load with a p95 of at most {header.slo_p95_ms:g} ms; give a higher "
            "--slo-p95-ms, or seek the limit first with --objective strict-slo"
        )
    path_of(embedded.folder, KEPT).unlink(missing_ok=True)
    console.print(f"the start bears {rate_in_words(found['level'])}/s at p95 <= {header.slo_p95_ms:g} ms")
    rate_per_s = rate_per_s or round(SHARE_TUNED_AT * found["level"], 1)
    embedded.settings = replace(embedded.settings, rate_per_s=rate_per_s)


def after_run(embedded: Embedded, header: Header, console: Console) -> None:
    """Searches what the configuration in force bears. A Ctrl-C ends the search, and no more."""
    assert header.slo_p95_ms is not None
    console.print("searching the highest rate that what is left bears ...")
    try:
        found = embedded.find_capacity(KEPT, header.slo_p95_ms, header.interval_s)
    except Stopped:
        console.print("stopped: what is left bears is not known")
        return
    console.print(f"it bears {rate_in_words(found['level'])}/s at p95 <= {header.slo_p95_ms:g} ms")
