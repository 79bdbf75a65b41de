"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
COMMANDS = (
    "rrl-tune",
    "rrl-serve",
    "rrl-load",
    "rrl-profile",
    "rrl-train",
    "rrl-compare",
    "rrl-store serve",
    "rrl-parity train-base",
    "rrl-parity train",
    "rrl-parity evaluate",
)
PRINTS = {"one copy of the weights": "", "one server": r"\d+ ms", "many servers": r"\d+ ms"}


@pytest.mark.parametrize(
    ("example", "printed"), list(zip(EXAMPLES, PRINTS.values(), strict=True)), ids=PRINTS
)
def test_the_library_examples_run(example, printed):
    ended = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    assert re.search(printed, ended.stdout)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\((docs/[^)]+)\)", README))))
def test_every_picture_is_there(path):
    assert (CHECKOUT / path).is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_shown_command_exists(command):
    shown = "\n".join(text for language, text in BLOCKS if not language).replace("\\\n", " ")
    lines = [line.split("#")[0] for line in shown.splitlines() if line.startswith(f"{command} ")]
    flags = {flag for line in lines for flag in re.findall(r"--[a-z][a-z0-9-]+", line)}
    program, *subcommand = command.split()
    asked = [str(Path(sys.executable).parent / program), *subcommand, "--help"]
    help_text = subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout
    assert flags
    assert not {flag for flag in flags if flag not in help_text}
