"""What a resumed run says about its target, which may be another than when it began."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rrl.command_line.opening.earlier import LIMITS, Earlier, as_before, limits_to_json
from rrl.command_line.options.options import TuneOptions
from tests.rrl.test_journal import header

SEVERAL_MODELS = {"jointly", "bls_composing_models"}
OF_THE_RUN = TuneOptions(
    max_changes_per_hour=4,
    change_window=("Mon-Fri 22:00-06:00",),
    forbid=("max_batch_size",),
    cores=3,
    on_foreign_change="stop",
    count_silence=True,
)
THEN = {"instances": 1, "max_batch_size": 1, "intra_op_threads": 2}  # as the journal's header found it


@pytest.mark.parametrize(
    ("server", "now", "says"),
    [
        ("rrl-serve 1", THEN, ""),
        ("rrl-serve 1", THEN | {"instances": 2}, ""),  # that is tuned
        ("triton 2.51", THEN, "the server is triton 2.51 instead of rrl-serve 1"),
        ("triton 2.51", THEN | {"intra_op_threads": 4}, "instead of rrl-serve 1, intra 2 -> 4"),
    ],
)
def test_a_target_that_is_another_now_is_told(server: str, now: dict[str, int], says: str) -> None:
    earlier = Earlier(TuneOptions(), replace(header(), server="rrl-serve 1"), [], None)
    target: Any = SimpleNamespace(server=server, configuration=lambda: now)
    out = io.StringIO()
    earlier.tell_how_found(target, Console(file=out, width=300))
    assert says in out.getvalue()
    assert ("what it learned may not hold" in out.getvalue()) == bool(says)


def test_a_resumed_run_may_change_what_it_might_and_bears_others_as_it_did() -> None:
    limits = limits_to_json(OF_THE_RUN)
    assert limits is not None
    assert set(limits) == set(LIMITS) - SEVERAL_MODELS
    completed = as_before(TuneOptions(), replace(header(), limits=limits))
    assert {name: getattr(completed, name) for name in LIMITS} == {
        name: getattr(OF_THE_RUN, name) for name in LIMITS
    }


def test_options_at_their_defaults_are_no_limits() -> None:
    assert limits_to_json(TuneOptions()) is None
