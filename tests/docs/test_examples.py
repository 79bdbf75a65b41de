"""What the README and the pages show works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from scripts.benchmarks.__main__ import BENCHMARKS
from scripts.docs.commands import documented
from scripts.docs.option_fields import option_fields
from scripts.figures.__main__ import FIGURES
from scripts.robustness.__main__ import MACHINES
from tests.support import CHECKOUT
from tests.support.pages import PAGES, README, blocks, inline_code, name, shown_commands, text_of

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
FLAGS = {
    command.name: {field.flag for field in option_fields(command.options_class)} for command in documented()
} | {
    f"python -m scripts.robustness {name}": {
        field.flag for field in option_fields(import_module(f"scripts.robustness.{machine.module}").Options)
    }
    for name, machine in MACHINES.items()
}
OF_PERF_ANALYZER = {
    "--concurrency-range",
    "--percentile",
    "--request-count",
    "--request-distribution",
    "--request-intervals",
    "--request-rate-range",
}
OF_OTHERS = {
    "--help",
    "--version",
    "--config",
    "--deployment",  # --model by the name that Ray Serve has for it
    "--list",
    "--stop-timeout",  # Docker's
    "--model-control-mode",
    "--load-model",
    "--logdir",
    "--model-file",
    *OF_PERF_ANALYZER,
}
PRINTS = {
    "README.md": r"\d+ ms",
    "docs/tutorial.md": r"50 .* \d+ ms",
    "docs/reference/environments.md": r"\d+ ms\n\d+ ms|ms\n.*ms",
    "docs/how-to/add-an-agent.md": r"\d+ ms at first, \d+ ms at last",
    "docs/how-to/add-a-machine.md": r"bears \d+ requests/s",
    "docs/how-to/from-torchserve.md": r"torch\.Size\(\[2, 8\]\)",
    "docs/how-to/cluster.md": "",
    "docs/how-to/serve-your-model.md": "",
    "docs/how-to/tune-a-triton.md": "",
    "docs/explanation/model-store.md": "",
}
"""What the examples of a page print."""


def examples(page: Path) -> str:
    """All Python of a page, as later examples go on with what earlier ones made."""
    return "\n".join(block.text for block in blocks(page) if block.language == "python")


def program_of(line: str) -> str:
    """The longest command that a line begins with."""
    return max((each for each in FLAGS if f"{line} ".startswith(f"{each} ")), key=len, default="")


def flags_in(line: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line))


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=name)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    asked = [sys.executable, "-c", examples(page)]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert re.search(PRINTS[name(page)], ended.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_shown_command_exists(command: str) -> None:
    lines = [line for page in PAGES for line in shown_commands(page) if line.startswith(f"{command} ")]
    flags = {flag for line in lines for flag in flags_in(line)}
    program, *subcommand = command.split()
    asked = [str(Path(sys.executable).parent / program), *subcommand, "--help"]
    help_text = subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout
    assert flags
    assert not {flag for flag in flags if flag not in help_text}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_shown_line_has_flags_of_its_own_command(page: Path) -> None:
    for line in shown_commands(page):
        if program := program_of(line):
            assert flags_in(line) <= FLAGS[program] | OF_OTHERS, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_flag_that_is_named_belongs_to_some_command(page: Path) -> None:
    known = set().union(OF_OTHERS, *FLAGS.values())
    assert not {flag for code in inline_code(page) for flag in flags_in(code)} - known


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_benchmark_figure_and_target_that_is_named_exists(page: Path) -> None:
    rules = re.findall(r"^([a-z ]+):", text_of(CHECKOUT / "Makefile"), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    known = {"scripts/bench": set(BENCHMARKS), "scripts/reproduce": {*FIGURES, "results"}, "make": targets}
    for line in shown_commands(page):
        program, *arguments = line.split()
        if program in known and arguments and re.fullmatch(r"[a-z][a-z0-9-]*", arguments[0]):
            assert arguments[0] in known[program], line


def test_the_readme_shows_the_two_commands() -> None:
    assert {"make tune", "make test"} <= set(shown_commands(README))
