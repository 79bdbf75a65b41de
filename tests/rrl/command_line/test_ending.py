"""What is said where a run ends before its time, and its exit code."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rrl.command_line.ending import (
    DONE,
    FAILED,
    INTERRUPTED,
    LIMIT_BROKEN,
    NOTHING_BETTER,
    TARGET_LOST,
    ended_early,
    ends_all,
    of_all,
)
from serving_adapter.target import NotPutBack, TargetError, TargetLost


@pytest.mark.parametrize(
    ("error", "stopped", "left", "code", "says"),
    [
        (
            TargetLost("lost"),
            True,
            False,
            INTERRUPTED,
            "the target is away; the next start restores it (lost)\n",
        ),
        (TargetError("refused"), True, True, INTERRUPTED, "the run ended: refused\n"),
        (TargetError("refused"), False, True, FAILED, "the run ended: refused\n"),
        (NotPutBack("broken"), True, False, INTERRUPTED, "configuration back, once the model is loaded\n"),
    ],
)
def test_an_early_end_says_what_is_so(
    error: TargetError, stopped: bool, left: bool, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keeping, point = SimpleNamespace(done=left), SimpleNamespace()
    assert ended_early(point, keeping, error, stopped) == code  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.endswith(says)
    assert ("away" in said) == ("away" in says)


def test_a_broken_limit_ends_no_other_run_and_is_told_of_all() -> None:
    assert [
        c for c in (DONE, NOTHING_BETTER, LIMIT_BROKEN, FAILED, TARGET_LOST, INTERRUPTED) if ends_all(c)
    ] == [
        FAILED,
        TARGET_LOST,
        INTERRUPTED,
    ]
    assert of_all([DONE, LIMIT_BROKEN, NOTHING_BETTER]) == LIMIT_BROKEN
    assert of_all([NOTHING_BETTER, DONE]) == DONE
