"""The grid that a run searches, within its share of the cores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from rrl.command_line.opening.search_grid import with_its_share
from rrl.command_line.options.options import TuneOptions

FOUND = {"instances": 1, "max_batch_size": 8}


def test_several_models_of_a_machine_that_does_not_tell_its_cores_need_a_budget() -> None:
    target = SimpleNamespace(is_local=False, cores=None, address="box:8001", model="a")
    with pytest.raises(ValueError, match=r"box:8001 does not tell how many cores .* give --cores"):
        with_its_share(
            TuneOptions(target="box:8001", model="a,b"),
            target,  # type: ignore[arg-type]
            FOUND,
            ["b"],
            Console(quiet=True),
        )
