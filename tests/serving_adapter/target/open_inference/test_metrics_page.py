"""A target's counters: statistics, and metrics pages that are its own, another server's, or none."""

import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer

import pytest

from serving_adapter.address import ServerAddress
from serving_adapter.target import TargetError, TargetLost
from serving_adapter.target.open_inference import found_counters, metrics_page
from serving_adapter.target.open_inference.found_counters import PageLocation
from serving_adapter.target.open_inference.metrics_page import MetricsPage
from serving_adapter.target.reading import BatchTotals
from tests.support.servers.fake_triton import PAGE, MetricsHandler


def test_calls_are_counted(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    target.calls.clear()
    target.read()
    assert target.calls == {"ModelStatistics": 1, "metrics page": 1}
    target.glance()
    assert target.calls == {"ModelStatistics": 1, "metrics page": 2}


@pytest.mark.parametrize("difference", ["fewer", "not growing", "growing faster"])
def test_a_metrics_page_of_another_server_is_told(triton, metrics, make_target, difference):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    says = "so it is the page of another server; give the metrics URL of the target"
    if difference == "fewer":
        triton.success = 100
        with pytest.raises(TargetError, match=f"counts 10 answered requests .* itself 110 .*{says}"):
            target.connect()
        return
    metrics.page = PAGE.replace("} 10", "} 1000")  # as after an earlier load
    target.connect()
    for k in (1, 2):
        triton.success += 100 if difference == "not growing" else 1
        if difference == "growing faster":
            metrics.page = PAGE.replace("} 10", f"}} {1000 + 100 * k}")
        if k == 1:
            target.read()  # once may be the drain of an earlier load
    if difference == "not growing":
        says = "so it stands still: a cache or proxy may hold it"
    with pytest.raises(TargetError, match=f"in the same time, {says}"):
        target.read()


def test_a_page_of_our_own_server_that_a_cache_holds_still_is_told(triton, metrics, make_target):
    triton.name = "rrl-serve"
    metrics.page = PAGE + 'rrl_in_flight_request_count{model="m",version="1"} 3\nrrl_cpu_seconds 7\n'
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    target.read()  # as in a silence: neither counts more
    assert target.calls["ModelStatistics"] > 0
    triton.success += 100
    with pytest.raises(TargetError, match=r"counts 10 .* itself 110 since it started, so it stands still"):
        target.read()
    metrics.page = metrics.page.replace("seconds 7", "seconds 8")
    target.calls.clear()
    target.read()
    assert target.calls == {"metrics page": 1}  # one that moves is not asked about


def test_what_an_earlier_load_still_answers_is_no_sign_of_another_server(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    metrics.page = PAGE.replace("} 10", "} 1000")
    target.connect()
    target.apply({"instances": 3})
    for k in range(1, 6):  # the old instances drain a long queue, which the new statistics leave out
        metrics.page = PAGE.replace("} 10", f"}} {1000 + 200 * k}")
        assert target.read().success == 1000 + 200 * k


def test_the_page_of_another_kind_of_server_is_told(triton, metrics, make_target):
    of_tap = PAGE + 'rrl_in_flight_request_count{model="m"} 3\n'
    ours = PAGE + 'rrl_in_flight_request_count{model="m",version="1"} 3\nrrl_cpu_seconds 7\n'
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    metrics.page = ours
    with pytest.raises(
        TargetError, match=r"is that of an rrl-serve, which \S+ is not, so .* another server;"
    ):
        target.connect()
    metrics.page = of_tap
    target.connect()
    assert target.read().in_flight == 3
    triton.name, metrics.page = "rrl-serve", ours
    target.connect()
    metrics.page = ours.replace("} 10", "} 100")  # our own server's statistics never begin again
    with pytest.raises(TargetError, match=r"counts 100 answered requests .* itself 10 since it started, so"):
        target.connect()
    metrics.page = PAGE
    with pytest.raises(
        TargetError, match=r"is not that of an rrl-serve, which \S+ is, so .* another server;"
    ):
        target.connect()


def test_new_loads_between_two_readings_contradict_no_page(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    for k in (1, 2, 3):
        target.apply({"max_batch_size": k})
        metrics.page = PAGE.replace("} 10", f"}} {10 + 300 * k}")
        triton.success = 50 * k  # of 300 that were answered since the last reading
        target.read()


def test_statistics_that_begin_again_contradict_no_page(triton, metrics, make_target):
    metrics.page = PAGE.replace("} 10", "} 1000")
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    target.apply({"max_batch_size": 2})
    triton.success = -10
    for k in (1, 2, 3):
        metrics.page = PAGE.replace("} 10", f"}} {1000 + 100 * k}")
        triton.success += 95  # the others drain
        reading = target.read()
        assert reading.success == 1000 + 100 * k
        assert reading.answered_by_earlier_loads == 1000 + 5 * k


def test_statistics_make_a_reading_and_the_missing_page_is_told(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    reading = target.read()
    assert (reading.success, reading.failure, reading.arrivals) == (10, 1, 11)
    assert (reading.request_s, reading.queue_s, reading.service_s) == pytest.approx((2.0, 0.5, 1.5))
    assert reading.telemetry == {(0, 2): BatchTotals(5, 0.75)}
    assert reading.cpu_busy_s is not None  # of this machine
    assert len(target.notes) == 1
    assert "completions, not arrivals" in target.notes[0]


def test_a_named_metrics_page_tells_arrivals_and_statistics_the_batches(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    reading = target.read()
    assert (reading.arrivals, reading.pending) == (14, 3)
    assert reading.telemetry == {(0, 2): BatchTotals(5, 0.75)}
    assert target.notes == []


def test_an_advertised_page_is_found_and_a_glance_asks_for_little(triton, metrics, make_target):
    metrics.filtered_page = PAGE.replace("} 10", "} 11")
    triton.extensions.append(f"metrics({metrics.server_port})")
    target = make_target(triton.address)
    target.connect()
    assert target.metrics_url == f"http://127.0.0.1:{metrics.server_port}/metrics"
    assert target.glance().arrivals == 15
    assert target.read().arrivals == 14
    target.glance()
    assert "name%5B%5D=nv_inference_request_success" in metrics.paths[-1]


def test_a_glance_at_a_server_without_the_filter_reads_the_whole_page(triton, metrics, make_target):
    triton.extensions.append(f"metrics({metrics.server_port})")
    metrics.filtered_page = ""
    target = make_target(triton.address)
    target.connect()
    assert target.glance().arrivals == 14


@pytest.fixture
def at_its_usual_ports(triton, metrics, monkeypatch):
    monkeypatch.setattr(found_counters, "TRITON_PORT", int(triton.address.rpartition(":")[2]))
    monkeypatch.setattr(found_counters, "TRITON_METRICS_PORT", metrics.server_port)


@pytest.mark.usefixtures("at_its_usual_ports")
def test_the_page_of_a_triton_at_its_usual_port_needs_no_name(triton, metrics, make_target):
    target = make_target(triton.address)
    target.connect()
    assert target.metrics_url == f"http://127.0.0.1:{metrics.server_port}/metrics"
    assert (target.read().arrivals, target.notes) == (14, [])
    target.connect()
    assert target.read().arrivals == 14


@pytest.mark.usefixtures("at_its_usual_ports")
@pytest.mark.parametrize("page", ["", "<html>", PAGE.replace('"m"', '"other"'), PAGE])
def test_what_is_at_that_port_instead_is_left_alone(triton, metrics, make_target, page):
    triton.success, metrics.page = 500, page  # the last one is of another server that has such a model
    target = make_target(triton.address)
    target.connect()
    assert target.metrics_url is None
    assert "give its metrics URL" in target.notes[0]
    assert target.read().arrivals == 511


def test_another_server_than_triton_has_no_usual_page():
    address = ServerAddress.parse("[::1]:8001")
    assert PageLocation.of(None, address, "triton 2.51", ()).url == "http://[::1]:8002/metrics"
    for where, server in ((address, "mlserver 1"), (ServerAddress.parse("localhost:8003"), "triton 2.51")):
        assert PageLocation.of(None, where, server, ()).url is None


def test_an_advertised_page_out_of_reach_is_told_and_left_out(triton, make_target):
    triton.extensions.append("metrics(1)")
    target = make_target(triton.address)
    target.connect()
    assert (
        "left out: the metrics page http://127.0.0.1:1/metrics does not answer (connection refused)"
        in (target.notes[0])
    )
    assert target.read().arrivals == 11


def test_a_named_page_that_is_none_is_an_error(triton, metrics, make_target):
    for url, says in (
        ("http://127.0.0.1:1/metrics", "does not answer .*a Triton with --allow-metrics=false has none"),
        (f"http://127.0.0.1:{metrics.server_port}/nothing", "answers 404"),
        (f"http://{triton.address}/metrics", "does not answer with HTTP .* it may be a gRPC port"),
        (f"https://127.0.0.1:{metrics.server_port}/metrics", "makes no TLS connection .* use http://"),
        ("localhost:8002", "must be like http://HOST:PORT/metrics"),
        ("ftp://localhost:8002/metrics", "must be like http://HOST:PORT/metrics"),
        ("http://[::1/metrics", "must be like http://HOST:PORT/metrics"),
        ("http://localhost:99999/metrics", "must be like http://HOST:PORT/metrics"),
    ):
        with pytest.raises(TargetError, match=says):
            make_target(triton.address, metrics_url=url).connect()


def test_the_page_of_another_model_is_an_error(triton, metrics, make_target):
    metrics.page = PAGE.replace('"m"', '"n"')
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    with pytest.raises(TargetError, match="no series of model 'm', only of n"):
        target.connect()


def test_a_metrics_page_that_disappears_is_lost(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    metrics.shutdown()
    metrics.server_close()
    target._counters.page.close()  # the kept connection is still served by its thread
    with pytest.raises(TargetLost, match="does not answer"):
        target.glance()


@pytest.mark.parametrize("told", ["1@192.0.2.1:80/latest?", "\u0661", "", "123456", "1)(2"])
def test_a_server_that_tells_no_port_is_asked_for_no_page(triton, make_target, told):
    triton.extensions.append(f"metrics({told})")
    target = make_target(triton.address)
    target.connect()
    assert target.metrics_url is None


@pytest.mark.parametrize("name", ["rrl-serve", "triton"])
def test_a_page_that_a_cache_holds_still_is_told_however_it_is_looked_at(triton, metrics, make_target, name):
    """While it waits for requests a run only glances."""
    triton.name = name
    if name == "rrl-serve":
        metrics.page = PAGE + 'rrl_in_flight_request_count{model="m",version="1"} 3\nrrl_cpu_seconds 7\n'
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    for _ in range(20):  # as long as nothing is answered, that is how it should be
        target.glance()

    def look_while_it_answers():
        for _ in range(20):
            triton.success += 10
            target.glance()

    with pytest.raises(TargetError, match="stands still: a cache or proxy"):
        look_while_it_answers()


@pytest.fixture
def page_that():
    """A page whose server answers by a function."""
    servers = []

    def serves(answer, timeout_s=20.0):
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (MetricsHandler,), {"do_GET": answer}))
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return MetricsPage(f"HTTP://0.0.0.0:{server.server_port}/metrics", "m", timeout_s)

    yield serves
    for server in servers:
        server.shutdown()
        server.server_close()


def with_length(length, body):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = len(body) < length

    return answer


def test_a_page_that_trickles_in_is_given_up_after_the_time_for_all_of_it(page_that):
    given_up = threading.Event()

    def trickle(handler):
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while not given_up.wait(0.01):
                handler.wfile.write(b"#\n")

    page = page_that(trickle, timeout_s=0.5)
    with pytest.raises(TimeoutError, match=r"no whole page within 0\.5 s"):
        page.read()
    given_up.set()


def test_a_page_that_is_cut_off_is_no_page(page_that):
    with pytest.raises(OSError, match="ended before its end"):
        page_that(with_length(len(PAGE) + 100, PAGE.encode())).read()


def test_a_page_that_is_too_long_is_refused_and_the_next_is_read_from_its_beginning(page_that, monkeypatch):
    monkeypatch.setattr(metrics_page, "_MAX_PAGE_BYTES", 1 << 20)
    bodies = [PAGE.encode() + b"#\n" * (1 << 20), PAGE.encode()]
    page = page_that(lambda handler: with_length(len(bodies[0]), bodies.pop(0))(handler))
    with pytest.raises(ValueError, match="is longer than 1 MiB, so it is no page of one server"):
        page.read()
    assert page.read().success == 10
    page.close()


def refusing(status, content_type, body):
    def answer(handler):
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_a_page_that_says_why_it_cannot_be_told_is_quoted(page_that):
    page = page_that(refusing(502, "text/plain", b"the server's page http://triton:8002/metrics\nis away\n"))
    says = "answers 502 Bad Gateway: the server's page http://triton:8002/metrics is away"
    with pytest.raises(ValueError, match=f"{says}$"):
        page.read()
    page.close()


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [(502, "text/html", b"<html>"), (503, "text/plain", b""), (404, "text/plain", b"404 page not found")],
)
def test_what_may_be_another_page_is_told_where_the_right_one_is(page_that, status, content_type, body):
    page = page_that(refusing(status, content_type, body))
    with pytest.raises(ValueError, match=rf"answers {status} .* instead of a metrics page, which Triton has"):
        page.read()
    page.close()


def test_a_proxy_of_the_environment_is_not_asked_for_a_page(page_that, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    page = page_that(with_length(len(PAGE), PAGE.encode()))
    assert page.read().success == 10
    page.close()


def test_a_page_that_was_read_is_not_left_out_when_the_target_comes_back(triton, metrics, make_target):
    triton.extensions.append(f"metrics({metrics.server_port})")
    target = make_target(triton.address)
    target.connect()
    metrics.shutdown()
    metrics.server_close()
    with pytest.raises(TargetError, match=r"the metrics page .* does not answer"):
        target.connect()
    triton.extensions.pop()
    with pytest.raises(TargetError, match="tells no metrics page any more"):
        target.connect()
    target.connect(counters=False)
