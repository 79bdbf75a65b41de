"""`rrl-serve` as a subprocess on free ports."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub


@dataclass
class RunningServer:
    """A running `rrl-serve`."""

    process: subprocess.Popen[str]
    address: str
    metrics_url: str

    @property
    def rest_url(self) -> str:
        """Of the protocol over HTTP; empty for none."""
        with grpc.insecure_channel(self.address) as channel:
            asked = pb.ServerMetadataRequest()
            extensions = GRPCInferenceServiceStub(channel).ServerMetadata(asked, timeout=60).extensions
        found = [re.fullmatch(r"http\((\d+)\)", extension) for extension in extensions]
        host = self.address.rpartition(":")[0]
        return next((f"http://{host}:{match[1]}/v2" for match in found if match), "")

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Signals it and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.process.wait(30)

    def metrics_page(self) -> str:
        return str(urllib.request.urlopen(self.metrics_url, timeout=60).read().decode())

    def counted(self, name: str, **labels: str) -> int:
        """A series of the metrics page, summed over those with these labels."""
        page = self.metrics_page()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        rows = [row for row in page.splitlines() if row.startswith(name + "{")]
        return round(sum(float(row.rpartition(" ")[2]) for row in rows if all(w in row for w in wanted)))


def start(*arguments: object, before: Sequence[str] = ()) -> RunningServer:
    """`before` is a command that runs another one, as `nice` does."""
    command = [*before, sys.executable, "-m", "serving_adapter.server.command_line", *map(str, arguments)]
    for port in ("--port", "--metrics-port"):
        if port not in command:
            command += [port, "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"on (\S+:\d+), metrics on (\S+)", line)
    if match is None:
        process.kill()
        process.wait()
        process.stdout.close()
        raise RuntimeError(f"the server did not start: {line!r}")
    return RunningServer(process, match.group(1), match.group(2))
