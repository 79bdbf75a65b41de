"""Metrics pages read as readings, and what is said of pages that are not."""

import math

import pytest

from serving_adapter.latency_histogram import CumulativeHistogram
from serving_adapter.target.open_inference.readings import parse_metrics
from serving_adapter.target.reading import BatchTotals

TRITON = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 90
nv_inference_request_success{model="m",version="2"} 10
nv_inference_request_success{model="other",version="1"} 7
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 2
nv_inference_request_failure{model="m",reason="OTHER",version="1"} 1
nv_inference_count{model="m",version="1"} 200
nv_inference_exec_count{model="m",version="1"} 50
nv_inference_request_duration_us{model="m",version="1"} 3000000
nv_inference_queue_duration_us{model="m",version="1"} 1000000
nv_inference_compute_input_duration_us{model="m",version="1"} 100000
nv_inference_compute_infer_duration_us{model="m",version="1"} 1.5e6
nv_inference_compute_output_duration_us{model="m",version="1"} 400000
nv_inference_pending_request_count{model="m",version="1"} 4
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.25
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.75
"""

OURS = """\
process_start_time_seconds 1.7e+09
rrl_cpu_seconds 12.5
nv_inference_request_success{model="m",version="1"} 3.0
nv_inference_request_duration_us{model="m",version="1"} 300000
nv_inference_request_failure{model="m",version="1"} 1.0
nv_inference_pending_request_count{model="m",version="1"} 1.0
rrl_in_flight_request_count{model="m",version="1"} 5.0
rrl_request_latency_seconds_bucket{le="0.01",model="m",version="1"} 1.0
rrl_request_latency_seconds_bucket{le="0.1",model="m",version="1"} 3.0
rrl_request_latency_seconds_bucket{le="+Inf",model="m",version="1"} 3.0
rrl_request_latency_seconds_count{model="m",version="1"} 3.0
rrl_request_latency_seconds_sum{model="m",version="1"} 0.125
rrl_batch_count{model="m",version="1",busy_instances="2",batch_size="4"} 6.0
rrl_batch_service_seconds{model="m",version="1",busy_instances="2",batch_size="4"} 0.75
"""


def test_a_triton_page_is_summed_over_versions_and_reasons():
    reading = parse_metrics(TRITON, "m", at_s=5.0)
    assert (reading.success, reading.failure, reading.pending, reading.in_flight) == (100, 3, 4, None)
    assert (reading.inference_count, reading.execution_count) == (200, 50)
    assert (reading.request_s, reading.queue_s, reading.service_s) == pytest.approx((3.0, 1.0, 2.0))
    assert reading.arrivals == 107
    assert reading.gpu_utilisation == pytest.approx(0.5)
    assert reading.latency is None
    assert reading.telemetry == {}
    assert reading.start_time_s is None
    assert reading.at_s == 5.0


def test_our_page_tells_histograms_telemetry_and_what_is_in_flight():
    reading = parse_metrics(OURS, "m", at_s=0.0)
    assert reading.latency == CumulativeHistogram((0.01, 0.1, math.inf), (1, 3, 3), 0.125)
    assert reading.queue is None
    assert reading.telemetry == {(2, 4): BatchTotals(6, 0.75)}
    assert (reading.arrivals, reading.backlog, reading.pending) == (9, 5, 1)
    assert reading.cpu_busy_s == 12.5
    assert reading.start_time_s == 1.7e9


MLSERVER = """\
process_start_time_seconds 1.7e+09
# TYPE model_infer_request_success_total counter
model_infer_request_success_total{model="m",version=""} 25.0
model_infer_request_success_total{model="m",version="None"} 3.0
model_infer_request_success_created{model="m",version=""} 1.79e+09
model_infer_request_failure_total{model="m",version=""} 1.0
model_infer_request_failure_total{model="other",version=""} 7.0
# TYPE model_infer_request_duration summary
model_infer_request_duration_count{model="m",version=""} 26.0
model_infer_request_duration_sum{model="m",version=""} 0.75
model_infer_request_duration_count{model="m",version="None"} 3.0
model_infer_request_duration_sum{model="m",version="None"} 0.25
"""


def test_an_mlserver_page_tells_completions_and_their_duration():
    reading = parse_metrics(MLSERVER, "m", at_s=0.0)
    assert (reading.success, reading.failure, reading.arrivals, reading.backlog) == (28, 1, 29, 0)
    assert (reading.request_s, reading.timed) == (1.0, 29)  # the failed one was timed as well
    assert math.isnan(reading.queue_s)
    assert math.isnan(reading.service_s)
    assert reading.start_time_s == 1.7e9
    glance = parse_metrics(MLSERVER, "m", at_s=0.0, counters_only=True)
    assert (glance.success, glance.failure) == (28, 1)


def test_mlserver_has_no_series_of_a_model_before_its_first_request():
    reading = parse_metrics(MLSERVER, "new", at_s=0.0)
    assert (reading.success, reading.failure, reading.request_s, reading.timed) == (0, 0, 0.0, 0)


def test_a_glance_tells_the_same_counts_and_no_histograms():
    glance = parse_metrics(OURS, "m", at_s=0.0, counters_only=True)
    assert (glance.arrivals, glance.success, glance.failure, glance.backlog) == (9, 3, 1, 5)
    assert glance.latency is None


def test_label_values_may_hold_escapes_braces_and_commas():
    page = 'nv_inference_request_success{note="a,b} c",model="m\\"\\\\x",version="1"} 2 1700000000000\n'
    assert parse_metrics(page, 'm"\\x', at_s=0.0, counters_only=True).success == 2


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("<!doctype html>\n<p>hello", "not a Prometheus metrics page: it begins '<!doctype html>'"),
        ('{"detail": "Not Found"}', "not a Prometheus metrics page"),
        ("", "the metrics page is empty; its path is usually /metrics"),
        ("go_goroutines 8\nprocess_cpu_seconds_total 1\n", "of another kind of server"),
        (TRITON.replace("request_duration", "no_duration"), "tells no latencies.*counter_latencies=false"),
        (TRITON.replace('"m"', '"resnet"'), "no series of model 'm', only of other, resnet"),
        (OURS.replace("} 3.0", "} three"), "malformed: nv_inference_request_success must be a number"),
        (OURS.replace("} 3.0", "} -3"), "must be a number from 0 up, got '-3'"),
        (OURS.replace("} 3.0", "} NaN"), "must be a number"),
        (OURS.replace('version="1"} 3.0', 'version="1"'), "expected `name{labels} value`"),
        (OURS.replace('le="+Inf"', 'le="1"'), r'no bucket le="\+Inf"'),
        (OURS.replace('le="0.1"', 'le="x"'), "malformed"),
    ],
)
def test_what_is_no_page_of_the_model_gets_one_sentence(page, says):
    with pytest.raises(ValueError, match=says) as caught:
        parse_metrics(page, "m", at_s=0.0)
    assert "\n" not in str(caught.value)


def test_quantiles_of_nothing_on_the_page_are_no_fault() -> None:
    nothing = """nv_inference_request_summary_us{model="m",version="1",quantile="0.5"} Nan
nv_inference_request_summary_us{model="idle",version="1",quantile="0.5"} Nan
"""
    assert parse_metrics(TRITON + nothing, "m", at_s=5.0) == parse_metrics(TRITON, "m", at_s=5.0)


def test_a_gauge_that_nobody_uses_and_is_no_number_is_no_fault() -> None:
    """Triton's, where the machine's clock of processor time stood still."""
    page = TRITON + "nv_cpu_utilization Nan\n"
    assert parse_metrics(page, "m", at_s=5.0) == parse_metrics(TRITON, "m", at_s=5.0)


def test_a_page_of_a_cluster_tells_the_processors_of_each_node():
    assert parse_metrics(OURS, "m", at_s=1.0).cpus_by_node == ()
    by_node = "".join(
        f'rrl_node_cpu_count{{model="{model}",version="1",node="{node}"}} {cpus}\n'
        for model, node, cpus in (("m", "a", 8.0), ("m", "b", 4.0), ("other", "a", 8.0))
    )
    assert parse_metrics(OURS + by_node, "m", at_s=1.0).cpus_by_node == (8, 4)
