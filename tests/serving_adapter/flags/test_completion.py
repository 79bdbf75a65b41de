"""The scripts that the commands print complete their flags in a shell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rrl.command_line.options.options import TuneOptions
from serving_adapter.flags.parsing import parse
from serving_adapter.load.options import LoadOptions

COMPLETE = """
source "$1"
COMP_WORDS=($2 $3)
COMP_CWORD=1
$(complete -p "$2" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(params=[("rrl-tune", TuneOptions), ("rrl-load", LoadOptions)], ids=lambda param: param[0])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, type]:
    monkeypatch.setattr(sys, "argv", [f"/opt/somewhere/bin/{request.param[0]}"])
    return request.param


def script(options_class: type, shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    with pytest.raises(SystemExit) as ended:
        parse(options_class, ["--tyro-print-completion", shell])
    assert not ended.value.code
    path = folder / "completion"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def test_bash_completes_the_flags(
    program: tuple[str, type], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, options_class = program
    path = script(options_class, "bash", tmp_path, capsys)
    asked = ["bash", "--norc", "-c", COMPLETE, "bash", str(path), name, "--mod"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["--model"], said.stderr


def test_zsh_finds_the_command_by_its_name(
    program: tuple[str, type], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(program[1], "zsh", tmp_path, capsys)
    assert path.read_text(encoding="utf-8").splitlines()[0] == f"#compdef {program[0]}"
    if (zsh := shutil.which("zsh")) is not None:
        subprocess.run([zsh, "-n", path], check=True)
