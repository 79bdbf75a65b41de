"""A target's counters: statistics, and metrics pages that are its own, another server's, or none."""

import pytest

from serving_adapter.target import TargetError, TargetLost
from serving_adapter.target.reading import BatchTotals
from tests.support.fake_triton import PAGE


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
    ours = PAGE + 'rrl_in_flight_request_count{model="m",version="1"} 3\n'
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    metrics.page = ours
    with pytest.raises(
        TargetError, match=r"is that of an rrl-serve, which \S+ is not, so .* another server;"
    ):
        target.connect()
    triton.name = "rrl-serve"
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
        ("http://127.0.0.1:1/metrics", "does not answer"),
        (f"http://127.0.0.1:{metrics.server_port}/nothing", "answers 404"),
        (f"http://{triton.address}/metrics", "does not answer with HTTP .* it may be a gRPC port"),
        (f"https://127.0.0.1:{metrics.server_port}/metrics", "makes no TLS connection .* use http://"),
        ("localhost:8002", "must be like http://HOST:PORT/metrics"),
        ("ftp://localhost:8002/metrics", "must be like http://HOST:PORT/metrics"),
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
