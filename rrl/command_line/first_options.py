"""`rrl-tune init`: asks three questions, and writes the YAML that `rrl-tune --config` takes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.prompt import Prompt

from rrl.command_line.options.model_analyzer_search import USUAL_CONCURRENCY
from rrl.objective import OF_OWN_LOAD, make_objective
from serving_adapter.address import ServerAddress, scheme_of
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.whole_files import written_whole

OBJECTIVES = {
    "latency": "the lowest mean latency",
    "strict-slo": "the lowest p95, below a limit",
    "least-resources": "the fewest threads that keep a limit",
    "throughput": "most answers per second, under a load of the run's own (no users)",
    "goodput": "most answers per second within a limit",
    "capacity": "the highest rate that is borne within a limit, under a load of the run's own (no users)",
}
HEAD = """\
# rrl-tune --config FILE; docs/reference/yaml.md has all options
# Of a server with several models, name those to tune: model: NAME
"""


@dataclass(frozen=True)
class InitOptions:
    """Asks where the server is and what matters, and writes a file for rrl-tune --config."""

    out: Path = Path("rrl-tune.yaml")
    """The file to write."""


def write_first_options(options: InitOptions) -> None:
    """Asks on the terminal, and writes the file."""
    console = Console()
    if options.out.exists():
        fail(f"{options.out} exists already: name another --out, or delete it")
    if not sys.stdin.isatty():
        fail("rrl-tune init asks questions: run it in a terminal, or write the file yourself")
    try:
        values = asked(console)
        text = HEAD + yaml.safe_dump(values, sort_keys=False)
        with written_whole(options.out) as file:
            file.write(text.encode())
    except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
        console.print()
        fail(f"{options.out} was not written, as a question was left open: answer all three")
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    console.print(f"wrote {options.out}; now: rrl-tune --config {options.out} --dry-run")


def asked(console: Console) -> dict[str, str | float]:
    """The answers as options, with the load that the objective needs."""
    target = Prompt.ask(
        "Where is the server (HOST:PORT of its gRPC port)", default="localhost:8001", console=console
    )
    ServerAddress.parse(scheme_of(target)[1])
    for name, what in OBJECTIVES.items():
        console.print(f"  {name}: {what}")
    objective = Prompt.ask("What matters", choices=list(OBJECTIVES), default="latency", console=console)
    text = Prompt.ask("Limit on the p95 in ms (empty for none)", default="", console=console)
    try:
        limit_ms = float(text) if text else None
    except ValueError:
        raise ValueError(f"the limit on the p95 must be a number of ms, got {text!r}") from None
    make_objective(objective, limit_ms)
    values: dict[str, str | float] = {"target": target, "objective": objective}
    if limit_ms is not None:
        values["slo_p95_ms"] = limit_ms
    if objective in OF_OWN_LOAD:
        values["bench"] = True
    if objective == "throughput":
        values["concurrency"] = USUAL_CONCURRENCY
    return values
