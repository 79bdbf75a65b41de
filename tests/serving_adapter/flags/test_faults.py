"""A command line that cannot be read is refused in one sentence: which flag, what came, what is expected."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from tyro.conf import Positional, UseAppendAction, arg

from serving_adapter.flags.parsing import parse


@dataclasses.dataclass(frozen=True)
class CookOptions:
    """Cooks."""

    dish: str
    heat: float = 1.0
    portions: int | None = None
    time_limit: float | str | None = None
    salted: bool = False
    spices: tuple[str, ...] = ()
    sizes_cm: tuple[int, ...] = ()
    recipe: Path | None = None
    style: Literal["boiled", "fried"] = "boiled"
    side_dish: UseAppendAction[tuple[str, ...]] = ()
    cook_name: Annotated[str | None, arg(aliases=["--chef"])] = None


@dataclasses.dataclass(frozen=True)
class AskOptions:
    """Asks."""

    portions: Positional[int]
    dish: str = "soup"


def sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: type, argv: list[str]
) -> str:
    """What is said of them, without the page."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kitchen"])
    with pytest.raises(SystemExit) as caught:
        parse(options, argv)
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    told, _, page = said.err.partition(" (see docs/")
    assert page.endswith(".md)\n")
    return told


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--heat", "hot"], "--heat must be a number, got 'hot'"),
        (["--heat=hot"], "--heat must be a number, got 'hot'"),
        (["--portions", "2.5"], "--portions must be a whole number, got '2.5'"),
        (["--sizes-cm", "1", "wide"], "--sizes-cm must be a whole number, got 'wide'"),
        (["--sizes_cm", "wide"], "--sizes-cm must be a whole number, got 'wide'"),
        (["--style", "raw"], "--style must be one of boiled, fried, got 'raw'"),
        (["--portions"], "--portions needs a value, which must be a whole number"),
        (["--heat", "--salted"], "--heat needs a value, which must be a number"),
        (["--side-dish"], "--side-dish needs a value, which must be text"),
        (["--time-limit"], "--time-limit needs a value, which must be a number or text"),
        (["--config"], "--config needs a value, which must be a path"),
        (["--chef"], "--cook-name needs a value, which must be text"),
        (["--salted=yes"], "--salted takes no value; --no-salted is its opposite"),
        (["--hate", "2"], "unknown flag --hate; the nearest is --heat"),
        (["--hate=2"], "unknown flag --hate; the nearest is --heat"),
        (["-heat", "2"], "unknown flag -heat; the nearest is --heat"),
        (["--side", "rice"], "unknown flag --side; the nearest is --side-dish"),
        (["--no-salt"], "unknown flag --no-salt; the nearest is --no-salted"),
        (["--chief", "me"], "unknown flag --chief; the nearest is --chef"),
        (["--bogus"], "unknown flag --bogus; `kitchen --help` names all"),
        (["--bogus", "1", "--heat", "-1e-3"], "unknown flag --bogus; `kitchen --help` names all"),
        (["--bogus", "1", "--heat", "-inf"], "unknown flag --bogus; `kitchen --help` names all"),
        (["--sizes-cm", "-1", "-2e3"], "--sizes-cm must be a whole number, got '-2e3'"),
        (["--", "--heat", "2"], "--heat stands behind --, where no flags are read"),
        (["--hate", "2", "--", "--heat", "2"], "unknown flag --hate; the nearest is --heat"),
        (["--", "stew"], "unexpected argument 'stew'; expected one of the flags that `kitchen --help` names"),
        (["-"], "unexpected argument '-'; expected one of the flags that `kitchen --help` names"),
        (["-5"], "unexpected argument '-5'; expected one of the flags that `kitchen --help` names"),
        (["--zzz"], "unknown flag --zzz; `kitchen --help` names all"),
        (["stew"], "unexpected argument 'stew'; expected one of the flags that `kitchen --help` names"),
        (
            ["--salted", "yes"],
            "unexpected argument 'yes'; expected one of the flags that `kitchen --help` names",
        ),
    ],
)
def test_a_flag_that_cannot_be_read_is_told_with_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    assert sentence(monkeypatch, capsys, CookOptions, ["--dish", "soup", *argv]) == expected


def test_a_required_flag_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = sentence(monkeypatch, capsys, CookOptions, ["--heat", "2"])
    assert told == "--dish must be given, as `kitchen --help` says"
    told = sentence(monkeypatch, capsys, CookOptions, ["--dihs", "soup"])
    assert told == "unknown flag --dihs; the nearest is --dish"


def test_so_is_an_argument_without_a_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence(monkeypatch, capsys, AskOptions, []) == "PORTIONS must be given, as `kitchen --help` says"
    assert (
        sentence(monkeypatch, capsys, AskOptions, ["many"]) == "PORTIONS must be a whole number, got 'many'"
    )
    for argv in (["2", "3"], ["2", "--", "3"], ["--", "2", "3"]):
        told = sentence(monkeypatch, capsys, AskOptions, argv)
        assert told == "unexpected argument '3'; expected one of the flags that `kitchen --help` names"
    for argv in (["--portions", "2"], ["--portions=2"]):
        told = sentence(monkeypatch, capsys, AskOptions, argv)
        assert told == "unknown flag --portions; PORTIONS is given without a flag"
    told = sentence(monkeypatch, capsys, AskOptions, ["--portion", "2"])
    assert told == "unknown flag --portion; `kitchen --help` names all"


def test_behind_two_hyphens_there_are_no_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["2", "--", "--dish", "stew"], ["--", "2", "--dish=stew"], ["--", "--dish", "stew"]):
        told = sentence(monkeypatch, capsys, AskOptions, argv)
        assert told == "--dish stands behind --, where no flags are read"
    told = sentence(monkeypatch, capsys, AskOptions, ["--", "-many"])
    assert told == "PORTIONS must be a whole number, got '-many'"
    assert parse(AskOptions, ["--", "2"]).portions == 2


def test_the_box_stays_where_no_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serving_adapter.flags.parsing.fault_in", lambda *_: "")
    with pytest.raises(SystemExit) as caught:
        parse(CookOptions, ["--dish", "soup", "--heat", "hot"])
    assert caught.value.code == 2
    assert "--heat" in capsys.readouterr().err
