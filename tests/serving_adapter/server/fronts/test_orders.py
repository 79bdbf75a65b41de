"""Another front has the options of the first one, but for what its node has otherwise."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from serving_adapter.flags.parsing import parse
from serving_adapter.server.front_process import host_for_clients, on_node
from serving_adapter.server.fronts.orders import FrontOrder, as_arguments
from serving_adapter.server.options import ServeOptions

OPTIONS = ServeOptions(engine="ray", fronts=2, instances=2)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"model": ("minilm", "burn"), "model_option": ("burn.rounds=1", "burn.branches=2")},
        {"http_port": -1, "private_weights": True, "grpc_keepalive_time": 5000},
        {"tls_cert": Path("/keys/a b.pem"), "drain_s": 1.5, "placement": "pack", "host": "10.0.0.1"},
    ],
)
def test_its_command_line_is_read_as_the_same_options(given: dict[str, object]) -> None:
    options = dataclasses.replace(OPTIONS, **given)  # type: ignore[arg-type]
    assert parse(ServeOptions, as_arguments(options)) == options


def test_an_order_is_read_as_it_was_written() -> None:
    order = FrontOrder(1, ("--fronts=2",), "10.0.0.1", 4711, "secret", "key")
    assert FrontOrder.from_text(order.to_text()) == order


def test_on_its_node_it_takes_the_same_ports_and_others_where_these_are_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = dataclasses.replace(OPTIONS, port=0, metrics_port=port, http_port=-1)
        there = on_node(options, "10.0.0.2")
        assert (there.port, there.metrics_port, there.http_port) == (0, 0, -1)
    assert on_node(options, "10.0.0.2").metrics_port == port


@pytest.mark.parametrize(
    ("host", "there"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("192.0.2.1", "127.0.0.3")]
)
def test_on_its_node_it_listens_at_the_address_of_that(host: str, there: str) -> None:
    options = dataclasses.replace(OPTIONS, host=host, port=0, metrics_port=0, http_port=0)
    assert on_node(options, "127.0.0.3").host == there


@pytest.mark.parametrize(
    ("host", "told"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "10.0.0.2"), ("[::]", "10.0.0.2"), ("192.0.2.1", "10.0.0.2")],
)
def test_clients_are_told_an_address_of_its_node_that_they_can_reach(host: str, told: str) -> None:
    assert host_for_clients(host, "10.0.0.2") == told


def test_a_host_whose_name_its_node_does_not_know_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        on_node(dataclasses.replace(OPTIONS, host="front.invalid"), "10.0.0.2")
    assert capsys.readouterr().err.startswith(
        "--host 'front.invalid' is no address or name that can be looked up on the node at 10.0.0.2; give an "
        "address, or have all nodes know the name"
    )


def test_its_key_comes_with_the_order_and_no_file_is_asked_for() -> None:
    options = dataclasses.replace(OPTIONS, control_key_file=Path("/keys/control"))
    assert on_node(options, "127.0.0.3").control_key_file is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fronts": 0}, "--fronts must be from 1 to 10000, got 0"),
        (
            {"fronts": 3, "engine": "ray", "instances": 2},
            "--instances 2 is below --fronts 3, and each front needs a worker of its own",
        ),
        (
            {"fronts": 2, "engine": "ray", "instances": 2, "record": Path("a.npz")},
            "--record keeps what one front gets; leave it out, or --fronts",
        ),
    ],
)
def test_what_no_fronts_can_do_is_refused_in_one_sentence(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServeOptions(**given)  # type: ignore[arg-type]
