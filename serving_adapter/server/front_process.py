"""The process of one of the other fronts: `rrl-serve`, as the first front has it started on a node."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from serving_adapter.address import is_loopback_only
from serving_adapter.control_key import KEY_VARIABLE
from serving_adapter.flags.parsing import fail, parse
from serving_adapter.server.command_line import run, serve
from serving_adapter.server.fronts.orders import FrontOrder
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol.listening import check_free
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.standard_streams import keep_standard_streams

WILDCARDS = ("0.0.0.0", "::")


def host_for_clients(host: str, node_host: str) -> str:
    """Where clients find a front on its node: at the node's address, or on loopback if the first is there.

    Ends the command where the node does not know a host of that name.
    """
    try:
        return host if is_loopback_only(host) else node_host
    except ValueError as error:
        fail(f"--host {error} on the node at {node_host}; give an address, or have all nodes know the name")


def on_node(options: ServeOptions, node_host: str) -> ServeOptions:
    """The options as they are on another node: its own address, and other ports where these are taken."""
    host = options.host
    if host.strip("[]") not in WILDCARDS:
        host = host_for_clients(host, node_host)
    rest_port = options.rest_port
    return replace(
        options,
        host=host,
        port=_free_port(host, options.port),
        metrics_port=_free_port(host, options.metrics_port),
        http_port=-1 if rest_port is None else _free_port(host, rest_port),
        control_key_file=None,  # the order has the key
    )


def _free_port(host: str, port: int) -> int:
    """This one if nobody has it, else 0, for any."""
    try:
        check_free(host, port)
    except OSError:
        return 0
    return port


def main() -> None:
    keep_standard_streams()
    log_to_standard_error()
    node_host, order = sys.argv[1], FrontOrder.from_text(sys.stdin.read())
    os.environ.pop(KEY_VARIABLE, None)  # of the node
    if order.control_key is not None:
        os.environ[KEY_VARIABLE] = order.control_key
    options = parse(ServeOptions, order.arguments)
    run(serve(on_node(options, node_host), order, host_for_clients(options.host, node_host)))


if __name__ == "__main__":
    main()
