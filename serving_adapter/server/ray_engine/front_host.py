"""The process on a node that one of the other fronts is a child of: an actor of Ray, which ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

from serving_adapter import own_process
from serving_adapter.server.ray_engine.agent import SET_BY_RAY
from serving_adapter.server.ray_engine.versions import Versions, difference, versions

WRONG_VERSION = 2  # as an exit status


class FrontEnd(NamedTuple):
    """How a front ended."""

    exit_status: int
    last_line: str  # that it wrote to standard error


class FrontHost:
    """Runs one front to its end."""

    def run(self, order: str, folder: str, of_first: Versions) -> FrontEnd:
        """`order` goes to its standard input; `folder` is its current one, where the node has that."""
        import ray

        if other := difference(of_first, versions()):
            return FrontEnd(WRONG_VERSION, other)
        node_host = ray.util.get_node_ip_address()
        environment = {name: value for name, value in os.environ.items() if name not in SET_BY_RAY}
        with subprocess.Popen(
            own_process.command_for_child("serving_adapter.server.front_process", node_host),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder if os.path.isdir(folder) else None,
            encoding="utf-8",
            errors="replace",  # models print what they like, and a node writes as its locale says
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(order)
            process.stdin.close()
            last_line = ""
            for line in process.stderr:
                sys.stderr.write(line)
                last_line = line.strip() or last_line
        return FrontEnd(process.returncode, last_line)
