"""An error names the page about what it speaks of, and the page is there."""

from __future__ import annotations

import pytest

from serving_adapter.flags.help_pages import ALL_FLAGS, PAGES, page_for
from tests.support import CHECKOUT


@pytest.mark.parametrize("page", sorted({ALL_FLAGS, *(page for _, page in PAGES)}))
def test_every_page_is_there(page: str) -> None:
    assert (CHECKOUT / page).is_file()


@pytest.mark.parametrize(
    ("message", "page"),
    [
        ("unknown agent 'alphago'; known: guided", "reference/agents.md"),
        ("tune.yaml sets the unknown option 'intervalls'", "reference/yaml.md"),
        ("no journal at runs/x; give the folder that an earlier run wrote", "reference/run-folder.md"),
        ("localhost:1 does not answer", "how-to/tune-a-triton.md"),
        ("--ray needs Ray: pip install 'ray[serve]==2.60.*'", "how-to/cluster.md"),
        ("there is no machine file 'absent.npz'", "how-to/profile-and-pretrain.md"),
        ("cannot read the data file absent.npz: No such file", "how-to/late-and-lost-answers.md"),
        ("unknown data 'absent'; give digits or the path of an .npz file", "how-to/late-and-lost-answers.md"),
        ("cannot read --change-window 'at'", "how-to/operators-limits.md"),
        ("knob 'instances': cannot read 'four'", "how-to/operators-limits.md"),
        ("cannot read knobs '1:4': expected e.g. instances=1:4", "how-to/operators-limits.md"),
        ("--knobs names bert, which is none of the models", "how-to/operators-limits.md"),
        ("the options file tune.yaml: knobs must be a list, each item text", "reference/yaml.md"),
        ("--intervals must be at least 1, got 0", "reference/commands.md"),
    ],
)
def test_an_error_has_the_page_about_it(message: str, page: str) -> None:
    assert page_for(message) == f"docs/{page}"
