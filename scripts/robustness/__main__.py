"""Runs one of the machines of robustness: `python -m scripts.robustness NAME [--help]`.

The module of a machine has `Options`, a dataclass that makes the flags, and `run(options) -> bool`. It says
whether everything held. Exit codes: 0 everything held, 1 something did not, 2 wrong use.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import NamedTuple

from serving_adapter.flags.parsing import fail, parse


class RobustnessMachine(NamedTuple):
    module: str  # within scripts.robustness
    text: str  # what it does, and what must hold


MACHINES = {
    "front": RobustnessMachine(
        "simulated_front.command", "the front with its event loop, clock and workers simulated by seed"
    ),
    "chaos": RobustnessMachine("chaos.command", "a real server under load, changes and kills"),
    "fuzz": RobustnessMachine("fuzz.command", "requests and files from grammars, most of them broken"),
    "soak": RobustnessMachine("soak", "a day's changes, arrivals and journal in an hour"),
}


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "--list"):
        for name, machine in MACHINES.items():
            print(f"{name:8} {machine.text}")
        return 0
    if arguments[0] not in MACHINES:
        fail(f"usage: python -m scripts.robustness NAME, with NAME one of {', '.join(MACHINES)}")
    module = importlib.import_module(f"scripts.robustness.{MACHINES[arguments[0]].module}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers it started end with it
    return 0 if module.run(parse(module.Options, arguments[1:])) else 1


if __name__ == "__main__":
    sys.exit(main())
