"""One reading of addresses for every command."""

from __future__ import annotations

import socket
from concurrent import futures

import grpc
import pytest

from serving_adapter.address import ServerAddress, bracketed, canonical, is_loopback_only
from serving_adapter.load.options import LoadOptions
from serving_adapter.target import OpenInferenceTarget, TargetError
from serving_adapter.target.open_inference.checks import notes_on_address


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("localhost:8500", "localhost:8500"),
        (" LocalHost.:8500 ", "localhost:8500"),
        ("GPU-box_2.example:8500", "gpu-box_2.example:8500"),
        ("127.0.0.1:8500", "127.0.0.1:8500"),
        ("[::1]:8500", "[::1]:8500"),
        ("::1:8500", "[::1]:8500"),
        ("[0:0:0:0:0:0:0:1]:8500", "[::1]:8500"),
        ("[FE80::1%Eth0]:8500", "[fe80::1%Eth0]:8500"),
        ("[fe80::1%25eth0]:8500", "[fe80::1%eth0]:8500"),
        ("0.0.0.0:8500", "127.0.0.1:8500"),
        ("[::]:8500", "[::1]:8500"),
        (":::8500", "[::1]:8500"),
        (":8500", "localhost:8500"),
        ("dns:///box:8500", "box:8500"),
        ("ipv4:127.0.0.1:8500", "127.0.0.1:8500"),
        ("ipv6:[::1]:8500", "[::1]:8500"),
        ("gRPC://box:8500", "box:8500"),
        ("unix:/run/serve.sock", "unix:/run/serve.sock"),
        ("unix:///run/serve.sock", "unix:/run/serve.sock"),
    ],
)
def test_every_form_has_one_way_to_write_it_which_reads_as_the_same(given: str, written: str) -> None:
    address = ServerAddress.parse(given)
    assert str(address) == written
    assert ServerAddress.parse(written) == address


@pytest.mark.parametrize(
    "given",
    [
        "",
        "localhost",
        "localhost:http",
        "localhost:0",
        "localhost:99999",
        "localhost:-1",
        "localhost:\u0668\u0665",
        ".:8500",
        "http://localhost:8500",
        "a b:8500",
        "user@box:8500",
        "[box]:8500",
        "[::1:8500",
        "[fe80::1%]:8500",
        "[fe80::1%eth0\x00]:8500",
        "[fe80::1%a b]:8500",
        "unix:",
    ],
)
def test_what_is_no_address_is_refused_with_what_was_expected(given: str) -> None:
    with pytest.raises(ValueError, match=r"must be HOST:PORT, e.g. localhost:8500 or \[::1\]:8500, got "):
        ServerAddress.parse(given)
    with pytest.raises(TargetError, match="the target must be HOST:PORT"):
        OpenInferenceTarget(given)
    with pytest.raises(ValueError, match="--target must be HOST:PORT"):
        LoadOptions(target=given)


def test_a_path_that_no_socket_can_have_is_refused() -> None:
    longest = "unix:/" + 53 * "é"  # of two bytes each
    assert str(ServerAddress.parse(longest)) == longest
    with pytest.raises(ValueError, match="at most 107 bytes, as the system has it, got 108: "):
        ServerAddress.parse(longest + "x")
    with pytest.raises(TargetError, match="the target must have a socket's path of at most 107 bytes"):
        OpenInferenceTarget(longest + "x")


def test_this_machine_has_one_canonical_name() -> None:
    own = (
        f"{socket.gethostname()}:1",
        "127.0.0.1:1",
        "[::1]:1",
        "127.8.9.1:1",
        "0.0.0.0:1",
        "[::ffff:127.0.0.1]:1",
    )
    assert {canonical(address) for address in own} == {"localhost:1"}
    assert canonical("Box.example:1") == "box.example:1"
    assert canonical("simulation") == "simulation"
    assert canonical("unix:///run/serve.sock") == "unix:/run/serve.sock"
    assert canonical("Queue://127.0.0.1:1") == canonical("queue://localhost:1") == "queue://localhost:1"


def test_whether_a_server_is_on_this_machine_decides_about_proxies() -> None:
    local = ("localhost:1", "127.0.0.2:1", "[::1]:1", "0.0.0.0:1", "unix:/a", f"{socket.gethostname()}:1")
    assert all(ServerAddress.parse(address).is_local for address in local)
    assert not any(
        ServerAddress.parse(address).is_local for address in ("192.0.2.7:1", "[2001:db8::1]:1", "box:1")
    )


def test_a_name_and_its_address_share_an_identity() -> None:
    by_name, by_address = (
        ServerAddress.parse(f"{host}:1").identities() for host in ("localhost", "127.0.0.1")
    )
    assert by_name & by_address
    assert not by_name & ServerAddress.parse("localhost:2").identities()
    assert not by_name & ServerAddress.parse("192.0.2.7:1").identities()


def test_a_host_stands_in_brackets_once() -> None:
    assert [bracketed(host) for host in ("::1", "[::1]", "box")] == ["[::1]", "[::1]", "box"]


def test_what_listens_on_all_addresses_is_not_of_this_machine_only() -> None:
    assert all(map(is_loopback_only, ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback_only, ("0.0.0.0", "::", "[::]", "192.0.2.1")))
    for unheard_of in ("", "::%lo", "0.0.0.0%00", "%30.0.0.0"):  # all of which gRPC might listen on
        with pytest.raises(ValueError, match="no address or name that can be looked up"):
            is_loopback_only(unheard_of)


@pytest.mark.parametrize("host", ["::1%lo", "0.0.0.0", "127.0.0.1"])
def test_an_environment_with_proxies_leaves_loopback_alone(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("[::]:0")
    server.start()
    target = OpenInferenceTarget(f"{bracketed(host)}:{port}", timeout_s=20.0)
    with pytest.raises(TargetError, match="speaks gRPC but does not know ServerMetadata"):
        target.connect()
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("found", "several"),
    [
        (["198.51.100.1", "198.51.100.2", "198.51.100.1"], ["198.51.100.1", "198.51.100.2"]),
        (["198.51.100.1", "2001:db8::1"], []),  # one machine in both families
        (["2001:db8::1", "198.51.100.1", "2001:db8::2"], ["2001:db8::1", "2001:db8::2"]),
        (["127.0.0.1", "198.51.100.1"], []),  # of this machine
        ([], []),
    ],
)
def test_a_name_of_several_servers_is_told_from_one_with_an_address_in_each_family(
    monkeypatch: pytest.MonkeyPatch, found: list[str], several: list[str]
) -> None:
    ask = socket.getaddrinfo

    def look_up(host: str, *given: object, **named: object) -> object:
        if host != "triton":
            return ask(host, *given, **named)  # type: ignore[arg-type]
        if not found:
            raise OSError("no such name")
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in found]
        return [(family, 1, 6, "", (a, 8001)) for family, a in zip(families, found, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    address = ServerAddress.parse("triton:8001")
    assert address.several_addresses() == several
    told = notes_on_address(address)
    assert len(told) == bool(several)
    assert all("give the address of one" in note for note in told)
