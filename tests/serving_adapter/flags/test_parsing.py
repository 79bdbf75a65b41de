from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from tyro.conf import UseAppendAction

from serving_adapter import own_process
from serving_adapter.flags.parsing import Command, fail, parse, parse_command
from tests.support import CHECKOUT


@dataclasses.dataclass(frozen=True)
class CookOptions:
    """Cooks."""

    dish: str
    heat: float = 1.0  # of the stove
    portions: int = 2
    salted: bool = False
    spices: tuple[str, ...] = ()
    recipe: Path | None = None
    style: Literal["boiled", "fried"] = "boiled"
    side_dish: UseAppendAction[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.heat <= 0:
            raise ValueError(f"the heat must be above 0, got {self.heat:g}")


def written(folder: Path, text: str) -> str:
    path = folder / "options.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def sentence_of_failure(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(CookOptions, argv)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip()


def test_flags_fill_the_dataclass() -> None:
    options = parse(CookOptions, ["--dish", "soup", "--heat", "2", "--salted", "--spices", "a", "b"])
    assert options == CookOptions("soup", heat=2.0, salted=True, spices=("a", "b"))
    assert type(options) is CookOptions


def test_the_file_sets_options_and_flags_override_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "dish: soup\nheat: 1e-3\nportions: 3\nsalted: true\nspices: [a, b]\nrecipe: x/y\nstyle: fried\n",
    )
    assert parse(CookOptions, ["--config", path]) == CookOptions(
        "soup", 0.001, 3, True, ("a", "b"), Path("x/y"), "fried"
    )
    options = parse(CookOptions, ["--heat", "4", f"--config={path}", "--no-salted", "--dish", "stew"])
    assert (options.dish, options.heat, options.salted, options.portions) == ("stew", 4.0, False, 3)


@pytest.mark.parametrize(
    "flags", [["--side-dish", "rice", "--side-dish", "peas"], ["--side_dish=rice", "--side_dish=peas"]]
)
def test_a_flag_that_may_be_repeated_overrides_the_file(tmp_path: Path, flags: list[str]) -> None:
    path = written(tmp_path, "dish: soup\nside_dish: [bread]\n")
    assert parse(CookOptions, ["--config", path]).side_dish == ("bread",)
    assert parse(CookOptions, ["--config", path, *flags]).side_dish == ("rice", "peas")


def test_a_flag_that_may_be_repeated_overrides_a_default_of_another_file() -> None:
    arguments = ["--dish", "soup", "--side-dish", "rice"]
    options = parse(CookOptions, arguments, lambda arguments, configured: {"side_dish": ("bread",)})
    assert options.side_dish == ("rice",)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert parse(CookOptions, ["--dish", "soup", "--config", written(tmp_path, "")]) == CookOptions("soup")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dihs: soup", "unknown option 'dihs'"),
        ("heat: hot", "heat must be a number, got 'hot'"),
        ("heat: true", "heat must be a number"),
        ("portions: 2.5", "portions must be a whole number, got 2.5"),
        ("portions: true", "portions must be a whole number"),
        ("salted: 1", "salted must be true or false, got 1"),
        ("dish: 7", "dish must be text, got 7"),
        ("spices: salt", """spices must be a list, each item text, such as ["salt"], got 'salt'"""),
        ("spices: {salt: 1}", "spices must be a list, each item text, got {'salt': 1}"),
        ("spices: [1]", "spices must be a list, each item text"),
        ("recipe: 3", "recipe must be a path or null"),
        ("style: raw", "style must be one of boiled, fried, got 'raw'"),
        ("- soup", "must hold `key: value` lines"),
        ("a: b: c", "is not a YAML file"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = written(tmp_path, text)
    sentence = sentence_of_failure(capsys, ["--config", path])
    assert words in sentence
    assert path in sentence
    assert "\n" not in sentence


def test_an_unreadable_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.yaml")
    assert missing in sentence_of_failure(capsys, ["--config", missing])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in sentence_of_failure(capsys, ["--config", str(binary)])


def test_the_class_s_own_check_speaks_plainly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = "the heat must be above 0, got -1 (see docs/reference/commands.md)"
    assert sentence_of_failure(capsys, ["--dish", "soup", "--heat", "-1"]) == expected
    path = written(tmp_path, "dish: soup\nheat: -1")
    assert sentence_of_failure(capsys, ["--config", path]) == expected
    assert parse(CookOptions, ["--config", path, "--heat", "1"]).heat == 1.0


def test_one_of_a_programs_commands_is_named_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kitchen"])
    commands = {"cook": Command(CookOptions, print, "cooks")}
    named = ((["cook"], "kitchen cook --help"), (["cook", "--help"], "usage: kitchen cook [-h]"))
    for arguments, told in named:
        with pytest.raises(SystemExit):
            parse_command("kitchen", commands, arguments)
        captured = capsys.readouterr()
        assert told in captured.out + captured.err


def test_the_help_shows_comments_and_the_values_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(CookOptions, ["--config", written(tmp_path, "portions: 77"), "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "of the stove" in shown
    assert "77" in shown
    assert "--config" in shown


def test_fail_writes_to_standard_error_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        fail("no soup today")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "no soup today (see docs/reference/commands.md)\n"


def without_stdin_and_stdout(command: list[str]) -> subprocess.CompletedProcess[str]:
    closing = f"{shlex.join(command)} <&- >&-"
    return subprocess.run(["sh", "-c", closing], stderr=subprocess.PIPE, text=True, timeout=60, cwd=CHECKOUT)


def test_a_command_whose_standard_streams_are_closed_does_its_work() -> None:
    ended = without_stdin_and_stdout(own_process.command("serving_adapter.load.command_line", "--help"))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_file_of_ours_takes_the_number_of_a_stream_that_was_closed() -> None:
    """What writes to standard output below Python, as torch does, must not write into a journal."""
    code = (
        "import os, sys; from tests.serving_adapter.flags.test_parsing import CookOptions, parse\n"
        "parse(CookOptions, ['--dish', 'soup'])\n"
        "print('nowhere'); sys.stderr.write(f'{os.open(\"/\", 0)} {sys.stdin.read()!r}')"
    )
    ended = without_stdin_and_stdout([sys.executable, "-c", code])
    number, read = ended.stderr.split()
    assert int(number) > 2
    assert read == "''"
