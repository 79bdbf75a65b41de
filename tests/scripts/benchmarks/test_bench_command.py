"""`scripts/bench` says what it does not know."""

from __future__ import annotations

import sys

import pytest

from scripts.benchmarks.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "what"),
    [([], "no benchmark is named"), (["serf-table2"], "unknown benchmark 'serf-table2'")],
)
def test_an_unknown_benchmark_lists_the_known(
    arguments: list[str], what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{what}; known: live-changes, ")
    assert "scripts/reproduce --list names the papers' figures" in said
