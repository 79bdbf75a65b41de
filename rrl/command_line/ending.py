"""How a command ends: its exit code, and what is said where a run ends before its time."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rrl.records import Header
from rrl.tuning.keeping import Keeping
from rrl.tuning.restore import TargetClaim
from rrl.views.summary import RunSummary
from serving_adapter.flags.parsing import in_a_sentence
from serving_adapter.target import LeaseTaken, NoSuchKnob, NotPutBack, TargetError, TargetLost

DONE, FAILED, INTERRUPTED = 0, 1, 130  # Exit codes. Wrong use is 2.
NOTHING_BETTER, LIMIT_BROKEN, TARGET_LOST = 3, 4, 5  # With --exit-code, in place of 0, 0 and 1.


def outcome(header: Header, summary: RunSummary) -> int:
    """The exit code of a run that came to its end, as --exit-code tells it: a broken limit first."""
    kept = summary.best if summary.found_better else summary.start
    limit_ms = header.slo_p95_ms
    if limit_ms is not None and kept.p95_ms > limit_ms:
        return LIMIT_BROKEN
    return DONE if summary.found_better else NOTHING_BETTER


def ends_all(code: int) -> bool:
    """Whether a run that ends with this exit code ends the command, too, so that no other one begins."""
    return code not in (DONE, NOTHING_BETTER, LIMIT_BROKEN)


def of_all(codes: Sequence[int]) -> int:
    """The exit code of several runs: a broken limit first, and something better for one is something."""
    return LIMIT_BROKEN if LIMIT_BROKEN in codes else min(codes)


def lost_or_failed(error: Exception) -> int:
    """The exit code of a run that an error ended, as --exit-code tells it."""
    return TARGET_LOST if isinstance(error, TargetLost) else FAILED


def broken_off(point: TargetClaim | None, keeping: Keeping) -> int:
    """Says what state an impatient Ctrl-C leaves the target in."""
    if point is not None and not keeping.done:
        print(
            "broken off before what the run leaves was in force: the target may have any configuration that "
            "was explored; the next rrl-tune on it puts the found one back",
            file=sys.stderr,
        )
    return INTERRUPTED


def ended_early(point: TargetClaim | None, keeping: Keeping, error: Exception, stopped: bool) -> int:
    """Says which error ended a run, and what becomes of its target."""
    restores = point is not None and not keeping.done
    is_broken, by_others = isinstance(error, NotPutBack), isinstance(error, LeaseTaken | NoSuchKnob)
    if stopped and restores and isinstance(error, TargetError) and not (is_broken or by_others):
        print(f"the target is away; the next start restores it ({error})", file=sys.stderr)
        return INTERRUPTED
    print(f"the run ended: {in_a_sentence(error)}", file=sys.stderr)
    if restores:
        once = ", once the model is loaded" if is_broken else ""
        if by_others:
            once = ", unless others have changed it by then"
        print(f"the next rrl-tune on this target puts the found configuration back{once}", file=sys.stderr)
    return INTERRUPTED if stopped else FAILED
