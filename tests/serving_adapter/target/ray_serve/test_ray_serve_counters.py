"""What two nodes of a real cluster told on their pages: 41 requests were answered, and one was not."""

import math
from pathlib import Path

import pytest

from serving_adapter.target.ray_serve import metrics_text as page
from serving_adapter.target.ray_serve.counter_ledger import CounterLedger

RECORDED = Path(__file__).parent / "recorded"
DOUBLED = page.of_deployment("numbers", "Doubled")
HEAD, NODE = "http://127.0.0.2:40635/metrics", "http://127.0.0.3:44777/metrics"
OF_A_COUNTER = (
    'ray_serve_batches_processed_total{{WorkerId="{}",application="numbers",deployment="Doubled"}} {}'
)


@pytest.fixture
def texts():
    return {HEAD: (RECORDED / "head.txt").read_text(), NODE: (RECORDED / "node.txt").read_text()}


@pytest.fixture
def ledger(texts):
    entered = CounterLedger()
    for url, text in texts.items():
        enter(entered, url, text)
    return entered


def enter(ledger, url, text):
    ledger.enter(url, (row for row in page.samples(text) if not row.is_gauge))


def requests(ledger, answered):
    return ledger.count(page.REQUESTS["http"], page.of_application("numbers", answered))


def test_requests_are_summed_over_nodes_and_told_apart_by_their_status(ledger):
    assert (requests(ledger, True), requests(ledger, False), requests(ledger, None)) == (41, 1, 42)
    assert ledger.count(page.ANSWERED, DOUBLED) == 41
    assert ledger.count(page.FAILED, DOUBLED) == 1
    assert ledger.count(page.BATCHES, DOUBLED) == 41
    assert ledger.count(page.ANSWERED, page.of_deployment("words", "Doubled")) == 0


def test_latencies_are_those_of_answered_requests_in_seconds(ledger):
    latency = ledger.histogram(page.LATENCY["http"], page.of_application("numbers", True))
    assert latency.cumulative[-1] == 41
    assert latency.bounds_s[5:7] == pytest.approx((0.05, 0.1))
    assert math.isinf(latency.bounds_s[-1])
    assert latency.cumulative[4] == 0  # a batch takes 31 ms
    assert 0.03 * 41 < latency.sum_s < 0.1 * 41
    both = ledger.histogram(page.LATENCY["http"], page.of_application("numbers"))
    assert both.cumulative[-1] == 42


def test_gauges_are_told_apart_from_what_is_counted(texts):
    rows = list(page.samples(texts[HEAD]))
    assert {row.name for row in rows if row.is_gauge} == {page.QUEUED, page.ONGOING}
    assert all(row.value == 0 for row in rows if row.is_gauge)


def test_only_the_pages_of_nodes_are_read(texts):
    assert all(page.is_of_a_node(text) for text in texts.values())
    assert not page.is_of_a_node('ray_dashboard_api_requests_count_requests_total{endpoint="get"} 4.0\n')


def test_counters_do_not_fall_when_a_node_goes_and_another_comes(ledger, texts):
    enter(
        ledger, "http://127.0.0.4:1234/metrics", texts[NODE]
    )  # its agent counts from 0 again, and got so far
    enter(ledger, HEAD, texts[HEAD])  # the node that went is not asked any more
    assert requests(ledger, True) == 42


def test_a_page_that_begins_again_goes_on_from_where_it_was():
    ledger = CounterLedger()
    told = []
    for value in (5, 7, 2, 3):
        enter(ledger, HEAD, OF_A_COUNTER.format("a", value))
        told.append(ledger.count(page.BATCHES, DOUBLED))
    assert told == [5, 7, 9, 10]


def test_a_process_has_told_once_its_mark_has_grown(ledger, texts):
    before = ledger.marks()
    enter(ledger, HEAD, texts[HEAD])
    assert ledger.marks() == before
    enter(ledger, HEAD, OF_A_COUNTER.format("a process", 1))
    assert {name for name, mark in ledger.marks().items() if mark != before.get(name)} == {"a process"}


def test_histograms_of_other_bounds_are_not_added():
    ledger = CounterLedger()
    labels = 'WorkerId="{}",application="numbers",deployment="Doubled",le="{}"'
    bucket = f"{page.PROCESSING}_bucket{{{{{labels}}}}} 1"
    enter(ledger, HEAD, "\n".join(bucket.format("a", bound) for bound in ("10.0", "+Inf")))
    assert ledger.histogram(page.PROCESSING, DOUBLED) == ((0.01, math.inf), (1, 1), 0.0)
    enter(ledger, NODE, "\n".join(bucket.format("b", bound) for bound in ("20.0", "+Inf")))
    assert ledger.histogram(page.PROCESSING, DOUBLED) is None


def test_a_line_that_is_no_sample_is_one_sentence():
    with pytest.raises(ValueError, match="malformed"):
        list(page.samples("ray_serve_batches_processed_total{a=b} 1"))
