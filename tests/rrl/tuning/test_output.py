"""What servers call things is shown as it is, and does nothing to a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rrl.tuning.stop import Output
from serving_adapter.flags.parsing import fail, in_a_sentence

HOSTILE = "model [/red]'[bold]x' \x1b[2J\x9b31m\x07:smile: no [/] end\u202e"
SHOWN = "model [/red]'[bold]x' \ufffd[2J\ufffd31m\ufffd:smile: no [/] end\ufffd"


def test_no_text_is_markup_or_moves_the_cursor() -> None:
    file = io.StringIO()
    table = Table(show_header=False, box=None)
    table.add_row(HOSTILE)
    console = Output(file=file, width=200, force_terminal=True, color_system=None, highlight=False)
    console.print(HOSTILE, style="yellow")
    console.print(table)
    assert file.getvalue().count(SHOWN) == 2


def test_no_renderable_moves_the_cursor_either() -> None:
    file = io.StringIO()
    console = Output(file=file, width=200, force_terminal=True, color_system=None, highlight=False)
    console.print(Panel(Group(Text(HOSTILE)), title=Text(HOSTILE)))
    assert file.getvalue().count("\ufffd[2J") == 2
    assert "\x1b" not in file.getvalue()


def test_an_error_does_not_either(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(HOSTILE)
    assert capsys.readouterr().err == f"{SHOWN} (see docs/reference/commands.md)\n"
    assert in_a_sentence(ValueError(HOSTILE)) == SHOWN
