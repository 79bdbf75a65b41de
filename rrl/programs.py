"""The programs, as the installed commands call them. Ctrl-C shows no traceback in any of them.

A program's module takes seconds to import, so that is done only when the program runs. Until it is imported,
and once the program is over, the signal has its default effect: it ends the process at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module

INTERRUPTED = 130  # the exit status where a program leaves Ctrl-C to Python


def _program(module: str) -> Callable[[], None]:
    """Runs `main` of the module. A SIGINT that is ignored when the program starts stays so."""

    def run() -> None:
        if sys.argv[1:] == ["--version"]:
            print(f"rrl-tune {import_module('importlib.metadata').version('rrl-tune')}")
            return
        is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_pythons:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        main = import_module(module).main
        try:
            if is_pythons:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            main()
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        finally:
            if is_pythons:
                signal.signal(signal.SIGINT, signal.SIG_DFL)

    return run


tune = _program("rrl.command_line")
serve = _program("serving_adapter.server.command_line")
store = _program("serving_adapter.model_store.command_line")
tap = _program("serving_adapter.tap.command_line")
parity = _program("serving_adapter.parity.command_line")
load = _program("serving_adapter.load.command_line")
profile = _program("envs.light_profiling")
train = _program("baselines.training")
compare = _program("baselines.comparison.command_line")
bench = _program("baselines.comparison.bench_command")
export = _program("envs.offline_data")
