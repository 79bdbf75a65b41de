"""What `rrl-tap` takes."""

from __future__ import annotations

import pytest

from serving_adapter.address import is_loopback_only
from serving_adapter.flags.parsing import parse
from serving_adapter.tap.command_line import TapOptions


def test_ports_alone_are_of_this_machine() -> None:
    options = parse(TapOptions, ["--listen", ":8201", "--target", ":8001"])
    assert (options.host, options.port) == ("127.0.0.1", 8201)
    assert is_loopback_only(TapOptions().host)


@pytest.mark.parametrize(
    ("given", "host", "port"), [("0.0.0.0:0", "0.0.0.0", 0), ("[::]:8101", "::", 8101), ("box:1", "box", 1)]
)
def test_a_host_opens_it(given: str, host: str, port: int) -> None:
    options = TapOptions(listen=given)
    assert (options.host, options.port) == (host, port)


@pytest.mark.parametrize("given", ["8101", "box", "box:", ":http", ":70000", ":-1"])
def test_what_cannot_be_listened_on_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(TapOptions, ["--listen", given])
    assert "--listen must be HOST:PORT or :PORT, e.g. :8101 or 0.0.0.0:8101" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["none", "None"])
def test_a_server_may_have_no_metrics_page(given: str) -> None:
    assert parse(TapOptions, ["--target-metrics-url", given]).server_metrics_url is None
    assert TapOptions().server_metrics_url == "http://localhost:8002/metrics"


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("triton:8001", "http://triton:8002/metrics"),
        ("[::1]:9001", "http://[::1]:8002/metrics"),
        (":8001", "http://localhost:8002/metrics"),
    ],
)
def test_the_metrics_page_is_looked_for_at_the_host_of_the_server(target: str, url: str) -> None:
    assert TapOptions(target=target).server_metrics_url == url


@pytest.mark.parametrize(
    "given", ["localhost:8002", "foo", "http://", "ftp://localhost/metrics", "http://h:x/"]
)
def test_what_is_no_url_of_a_page_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(TapOptions, ["--target-metrics-url", given])
    assert f"--target-metrics-url must be like http://HOST:8002/metrics, or none, got '{given}'" in (
        capsys.readouterr().err
    )
