"""`rrl-tap`: hands a server's gRPC traffic on, and counts the latency that its clients see."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass

from serving_adapter.address import ServerAddress, bracketed
from serving_adapter.flags.parsing import fail, parse
from serving_adapter.http_exchange import parts_of
from serving_adapter.server.metrics.page_server import serve_application
from serving_adapter.server.protocol.listening import check_free
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.standard_streams import keep_standard_streams
from serving_adapter.stop_signal import end_quietly_on_interrupt, stop_on_signal
from serving_adapter.tap.page import page_of
from serving_adapter.tap.proxy import Tap
from serving_adapter.tap.tally import ClientTally

log = logging.getLogger(__name__)

METRICS_PORT_OF_TRITON = 8002
DRAIN_S = 10.0  # a supervisor such as Kubernetes gives 30 s to end


@dataclass(frozen=True)
class TapOptions:
    """Stands between clients and an inference server, and tells the latency that the clients see."""

    target: str = "localhost:8001"
    """HOST:PORT of the server's gRPC port."""
    target_metrics_url: str | None = ""
    """The server's Prometheus page, which the tap's page begins with; none where there is none. Default:
    http://HOST:8002/metrics, with the host of --target."""
    listen: str = ":8101"
    """HOST:PORT for clients; without a host, this machine's only can come. Port 0 takes any free one."""
    metrics_port: int = 8102
    """HTTP port of /metrics, on the same host; 0 takes any free one."""

    def __post_init__(self) -> None:
        try:
            ServerAddress.parse(self.target)
        except ValueError as error:
            raise ValueError(f"--target {error}") from None
        if ServerAddress.parse(self.target).unix:
            raise ValueError("--target must be HOST:PORT: no tap is needed on a socket of one machine")
        if self.server_metrics_url is not None and parts_of(self.server_metrics_url) is None:
            raise ValueError(
                "--target-metrics-url must be like http://HOST:8002/metrics, or none, "
                f"got {self.server_metrics_url!r}"
            )
        port = self.listen.rpartition(":")[2]
        if ":" not in self.listen or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ValueError(
                f"--listen must be HOST:PORT or :PORT, e.g. :8101 or 0.0.0.0:8101, got {self.listen!r}"
            )
        if not 0 <= self.metrics_port <= 65535:
            raise ValueError(f"--metrics-port must be from 0 to 65535, got {self.metrics_port}")

    @property
    def server_metrics_url(self) -> str | None:
        """The server's page; None where it has none."""
        if self.target_metrics_url == "":
            host = ServerAddress.parse(self.target).host
            return f"http://{bracketed(host)}:{METRICS_PORT_OF_TRITON}/metrics"
        return None if self.target_metrics_url == "none" else self.target_metrics_url

    @property
    def host(self) -> str:
        """Where to listen, without brackets: loopback where none is given."""
        return self.listen.rpartition(":")[0].strip("[]") or "127.0.0.1"

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])


async def tap(options: TapOptions) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP. Then it takes no connections, and waits for the last answers."""
    stop = stop_on_signal()
    target = ServerAddress.parse(options.target)
    proxy = Tap(target.host, target.port, ClientTally())
    host = options.host
    try:
        check_free(host, options.port)
        server = await asyncio.get_running_loop().create_server(proxy.connection, host, options.port)
        check_free(host, options.metrics_port)
        metrics_port = serve_application(
            page_of(proxy.tally, options.server_metrics_url), host, options.metrics_port
        )
    except OSError as error:
        fail(f"cannot listen on {bracketed(host)} ({error.strerror}); choose other ports or another host")
    port = server.sockets[0].getsockname()[1]
    where = bracketed(host)
    print(
        f"tapping {options.target} on {where}:{port}, metrics on http://{where}:{metrics_port}/metrics",
        flush=True,
    )
    await stop.wait()
    server.close()
    await proxy.drain(DRAIN_S)


def main() -> None:
    end_quietly_on_interrupt()
    keep_standard_streams()
    log_to_standard_error()
    tapping = tap(parse(TapOptions, sys.argv[1:]))
    try:
        import uvloop
    except ImportError:
        asyncio.run(tapping)
    else:
        uvloop.run(tapping)


if __name__ == "__main__":
    main()
