"""Two readings become a measurement."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.profiler import measure
from rrl.measurement import NOT_TOLD, ServiceTimes
from serving_adapter.latency_histogram import CumulativeHistogram
from serving_adapter.target.reading import BatchTotals, Reading

BOUNDS_S = (*(1e-4 * 1.08 ** np.arange(170)), math.inf)
BUCKET_RATIO = 1.08


def histogram(samples_s):
    """Of samples in seconds, as a server counts them."""
    counts = np.searchsorted(np.sort(samples_s), BOUNDS_S, side="right")
    return CumulativeHistogram(BOUNDS_S, tuple(int(c) for c in counts), float(np.sum(samples_s)))


def reading(at_s=0.0, latency_s=(), queue_s=(), service_s=(), in_flight=0, failure=0, **more):
    return Reading(
        at_s=at_s,
        success=len(latency_s),
        failure=failure,
        inference_count=len(latency_s),
        execution_count=(len(latency_s) + 1) // 2,
        request_s=float(np.sum(latency_s)),
        queue_s=float(np.sum(queue_s)),
        service_s=float(np.sum(service_s)),
        in_flight=in_flight,
        latency=histogram(latency_s),
        queue=histogram(queue_s),
        service=histogram(service_s),
        **more,
    )


def test_arrivals_count_what_piled_up_and_what_failed():
    m = measure(reading(10.0, [0.1] * 5, in_flight=2), reading(14.0, [0.1] * 25, in_flight=30, failure=3))
    assert (m.arrivals, m.completions, m.failures) == (20 + 3 + 28, 20, 3)
    assert m.arrival_rate_per_s == pytest.approx(51 / 4)
    assert (m.backlog, m.backlog_growth) == (30, 28)
    assert m.gap == ""


def test_more_requests_than_any_server_takes_in_are_none_and_leave_a_gap():
    wrapped = reading(5.0, [0.1] * 25, in_flight=2**64 - 1)
    m = measure(reading(), wrapped)
    assert (m.arrivals, m.completions, m.backlog) == (0, 0, 0)
    assert m.gap == (
        "the server's counters tell of 1.84e+19 requests within the interval, beyond all measure"
    )
    assert measure(wrapped, reading(10.0, [0.1] * 50)).arrivals == 0


def test_pending_requests_stand_in_for_those_in_flight():
    before, after = reading(in_flight=None, pending=1), reading(1.0, [0.1], in_flight=None, pending=5)
    assert measure(before, after).arrivals == 5


def test_percentiles_agree_with_numpy_within_a_bucket():
    rng = np.random.default_rng(0)
    samples_s = rng.lognormal(-4.0, 1.0, 5000)
    m = measure(reading(), reading(5.0, samples_s, queue_s=samples_s / 4, service_s=samples_s * 3 / 4))
    for summary, share in ((m.latency, 1.0), (m.queue, 0.25), (m.service, 0.75)):
        assert summary.mean_ms == pytest.approx(1e3 * share * samples_s.mean())
        for measured_ms, q in zip(summary[1:], (50, 95, 99), strict=True):
            exact_ms = 1e3 * share * np.percentile(samples_s, q)
            assert abs(math.log(measured_ms / exact_ms)) < math.log(BUCKET_RATIO)


@given(st.lists(st.floats(2e-4, 10.0), min_size=1, max_size=50), st.lists(st.floats(2e-4, 10.0), max_size=50))
def test_a_percentile_lies_in_the_bucket_of_the_sample_it_ranks(new_s, old_s):
    m = measure(reading(0.0, old_s), reading(1.0, [*old_s, *new_s]))
    for measured_ms, q in zip(m.latency[1:], (0.50, 0.95, 0.99), strict=True):
        ranked_ms = 1e3 * sorted(new_s)[max(0, math.ceil(q * len(new_s)) - 1)]
        assert abs(math.log(measured_ms / ranked_ms)) <= math.log(BUCKET_RATIO) + 1e-9


def test_percentiles_beyond_the_last_bound_are_that_bound():
    m = measure(reading(), reading(1.0, [1e6] * 3))
    assert m.latency.p50_ms == pytest.approx(1e3 * BOUNDS_S[-2])


def test_percentiles_in_the_first_bucket_are_linear_from_zero():
    m = measure(reading(), reading(1.0, [5e-5] * 100))
    assert m.latency.p50_ms == pytest.approx(0.5 * 1e3 * BOUNDS_S[0])


def test_percentiles_are_interpolated_inside_their_bucket():
    samples_s = np.random.default_rng(1).lognormal(-4.0, 1.0, 50_000)
    m = measure(reading(), reading(5.0, samples_s))
    exact_ms = 1e3 * np.percentile(samples_s, (50, 95, 99))
    np.testing.assert_allclose(m.latency[1:], exact_ms, rtol=0.01)


counts = st.integers(0, 50)
steps = st.tuples(counts, counts, st.integers(0, 20), counts, counts)


@given(steps, steps, steps)
def test_measurements_of_adjacent_intervals_add_up(a, b, c):
    readings, at = [], [0, 0, 0, 0, 0]
    for second, (arrived, failed, batches, _, _) in enumerate((a, b, c)):
        arrived, failed, batches = arrived + at[0], failed + at[1], batches + at[2]
        done = (arrived + second) // 2  # some of them
        done = max(done, at[3])
        readings.append(
            replace(
                reading(float(second), [0.01 * (i + 1) for i in range(done)]),
                failure=failed,
                in_flight=arrived - done,
                execution_count=batches,
                telemetry={(1, 2): BatchTotals(batches, 0.5 * batches)},
            )
        )
        at = [arrived, failed, batches, done, 0]
    first, second_, both = (
        measure(readings[0], readings[1]),
        measure(readings[1], readings[2]),
        measure(readings[0], readings[2]),
    )
    for name in ("duration_s", "arrivals", "completions", "failures", "backlog_growth"):
        assert getattr(both, name) == getattr(first, name) + getattr(second_, name), name
    assert sum(row.count for row in both.telemetry) == sum(
        row.count for row in first.telemetry + second_.telemetry
    )
    assert both.gap == ""


def test_without_histograms_the_means_come_from_the_sums():
    before = replace(reading(), latency=None, queue=None, service=None)
    after = replace(before, at_s=2.0, success=10, request_s=0.5, queue_s=0.2, service_s=0.3)
    m = measure(before, after)
    assert (m.latency.mean_ms, m.queue.mean_ms, m.service.mean_ms) == pytest.approx((50.0, 20.0, 30.0))
    assert math.isnan(m.latency.p95_ms)


@pytest.mark.parametrize("new_s", [[0.01] * 10, [0.01] * 110], ids=["fewer", "more"])
def test_clients_that_were_counted_from_zero_again_are_those_since_then(new_s):
    before, after = reading(0.0, [0.8] * 100), reading(5.0, [0.8] * 210)
    again = replace(after, latency=histogram(new_s), clients=histogram(new_s))
    m = measure(replace(before, clients=histogram([0.8] * 100)), again)
    assert m.gap == ""
    assert m.latency.mean_ms == pytest.approx(10.0)
    assert m.latency.p95_ms == pytest.approx(10.0, rel=BUCKET_RATIO - 1)
    assert math.isnan(m.network_ms)


def test_no_traffic_is_no_arrivals_and_no_latency():
    m = measure(reading(0.0, [0.1]), reading(5.0, [0.1]))
    assert (m.arrivals, m.completions, m.duration_s, m.gap) == (0, 0, 5.0, "")
    assert math.isnan(m.latency.mean_ms)
    assert math.isnan(m.mean_batch_size)


def test_a_restarted_server_leaves_a_gap_and_the_counters_since():
    before = reading(0.0, [0.1] * 100, in_flight=7, start_time_s=1000.0)
    after = reading(5.0, [0.2] * 10, in_flight=1, start_time_s=1003.0)
    m = measure(before, after)
    assert m.gap == "the server restarted within the interval"
    assert (m.arrivals, m.completions) == (11, 10)
    assert m.latency.mean_ms == pytest.approx(200.0)


def test_a_restart_is_seen_though_the_new_counters_are_higher():
    m = measure(reading(start_time_s=1.0), reading(5.0, [0.2] * 10, start_time_s=2.0))
    assert m.gap
    assert m.completions == 10


def test_counters_that_fall_leave_a_gap():
    m = measure(reading(0.0, [0.1] * 100), reading(5.0, [0.2] * 10))
    assert "started again" in m.gap
    assert m.completions == 10


def test_an_interval_in_which_a_cluster_lost_a_node_leaves_a_gap_by_others_and_its_counters():
    before = reading(0.0, [0.1] * 5, cluster_changed_share=0.2)
    after = reading(2.0, [0.1] * 25, cluster_changed_share=0.4)
    m = measure(before, after)
    assert "nodes of its cluster went or came" in m.gap
    assert m.gap_by_others
    assert m.completions == 20
    assert measure(before, replace(after, cluster_changed_share=0.2)).gap == ""


def test_a_large_cluster_of_which_a_node_in_a_hundred_went_is_learned_from():
    m = measure(reading(cluster_changed_share=3.0), reading(2.0, [0.1] * 25, cluster_changed_share=3.02))
    assert m.gap == ""
    assert not m.gap_by_others


def test_a_restart_is_told_and_not_said_to_be_the_nodes_doing():
    before = reading(0.0, [0.1] * 5, cluster_changed_share=0.2, start_time_s=1.0)
    m = measure(before, reading(2.0, [0.1] * 25, cluster_changed_share=0.4, start_time_s=2.0))
    assert "restarted" in m.gap
    assert not m.gap_by_others


def test_rounding_of_sums_is_no_restart():
    before = reading(0.0, [0.1])
    assert measure(before, replace(before, at_s=1.0, request_s=before.request_s - 1e-12)).gap == ""


def test_telemetry_is_the_difference_where_batches_ran():
    before = reading(telemetry={(1, 1): BatchTotals(5, 1.0), (1, 2): BatchTotals(3, 1.0)})
    after = reading(
        1.0,
        telemetry={
            (1, 1): BatchTotals(7, 1.5),
            (1, 2): BatchTotals(3, 1.0),
            (2, 4): BatchTotals(1, 0.25),
        },
    )
    assert measure(before, after).telemetry == (ServiceTimes(1, 1, 2, 0.5), ServiceTimes(2, 4, 1, 0.25))


def test_telemetry_counts_from_zero_where_the_model_was_loaded_anew():
    """A stock Triton's statistics begin again then, its page does not."""
    before = reading(telemetry={(0, 1): BatchTotals(5, 1.0)}, executions_since_load=50)
    after = reading(telemetry={(0, 1): BatchTotals(7, 1.5)}, executions_since_load=7)
    assert measure(before, after).telemetry == (ServiceTimes(0, 1, 7, 1.5),)
    assert measure(before, after).gap == ""


def test_failed_requests_among_the_timed_ones_are_among_those_the_mean_is_of():
    before = replace(reading(), latency=None, queue=None, service=None, queue_s=math.nan, timed=2)
    after = replace(before, success=3, failure=1, request_s=0.4, timed=6)
    m = measure(before, after)
    assert (m.completions, m.failures) == (3, 1)
    assert m.latency.mean_ms == pytest.approx(100.0)
    assert math.isnan(m.queue.mean_ms)


def test_processor_use_is_a_share_of_what_the_machine_had():
    before = reading(0.0, cpu_busy_s=10.0, cpu_available_s=100.0)
    after = reading(5.0, cpu_busy_s=13.0, cpu_available_s=110.0, gpu_utilisation=0.4)
    assert measure(before, after).cpu_utilisation == pytest.approx(0.3)
    assert measure(before, after).gpu_utilisation == pytest.approx(0.4)


def seen_by_clients(answered, sum_s):
    """Latencies of so many answers, as a load counts them."""
    return CumulativeHistogram((1.0, math.inf), (answered, answered), sum_s)


def test_the_network_delay_is_what_clients_saw_beyond_the_server():
    before = reading(0.0, [0.1] * 10, clients=seen_by_clients(10, 1.2))
    after = reading(5.0, [0.1] * 30, clients=seen_by_clients(30, 3.3))
    assert measure(before, after).network_ms == pytest.approx(1e3 * (2.1 / 20 - 0.1))


@pytest.mark.parametrize("totals", [None, seen_by_clients(4, 0.4), seen_by_clients(10, 1.2)])
def test_without_new_answers_of_clients_the_network_delay_is_unknown(totals):
    """No load of our own; one that was started again; no answer in between."""
    before = reading(0.0, [0.1] * 10, clients=seen_by_clients(10, 1.2))
    assert math.isnan(measure(before, reading(5.0, [0.1] * 30, clients=totals)).network_ms)
    assert math.isnan(measure(reading(), before).network_ms)


def test_unknown_processor_use_is_nan():
    assert math.isnan(measure(reading(), reading(1.0)).cpu_utilisation)
    assert math.isnan(measure(reading(), reading(1.0)).gpu_utilisation)
    fallen = measure(
        reading(cpu_busy_s=9.0, cpu_available_s=10.0), reading(1.0, cpu_busy_s=8.0, cpu_available_s=12.0)
    )
    assert math.isnan(fallen.cpu_utilisation)
    two_cores = reading(cpu_busy_s=1.0, cpu_available_s=20.0, cores=2)
    assert math.isnan(
        measure(two_cores, reading(1.0, cpu_busy_s=2.0, cpu_available_s=33.0, cores=3)).cpu_utilisation
    )


def test_answers_that_no_histogram_has_yet_have_a_mean():
    before = reading(0.0, [0.1] * 10)
    after = replace(reading(5.0, [0.1] * 10 + [0.3] * 10), latency=before.latency)
    m = measure(before, after)
    assert m.latency.mean_ms == pytest.approx(300.0)
    assert math.isnan(m.latency.p95_ms)


def test_changed_buckets_count_from_zero():
    before = replace(reading(), latency=CumulativeHistogram((1.0, math.inf), (4, 4), 2.0))
    assert measure(before, reading(1.0, [0.1] * 4)).latency.mean_ms == pytest.approx(100.0)


def looked_at(arrivals, moments_s):
    """Readings at these moments of a server that answers at once what has arrived by then."""
    return [reading(at_s, in_flight=count) for at_s, count in zip(moments_s, arrivals, strict=True)]


def test_looks_in_between_tell_a_dispersion():
    counts = np.array([3, 9, 1, 12, 5])
    before, *looks, after = looked_at([7, *(7 + np.cumsum(counts))], range(10, 16))
    told = measure(before, after, [looked_at([0], [9.0])[0], *looks, looked_at([99], [16.0])[0]])
    assert told.dispersion == pytest.approx(np.var(counts, ddof=1) / counts.mean())
    assert told.arrival_summary == NOT_TOLD
    assert math.isnan(measure(before, after).dispersion)
    assert math.isnan(measure(before, after, looks[1:]).dispersion)
    assert math.isnan(measure(before, replace(after, comes_in_lumps=True), looks).dispersion)


def test_looks_at_unlike_distances_find_steady_arrivals_steady():
    moments_s = [0.0, 0.5, 2.5, 3.0, 6.0, 6.5, 9.0]
    before, *looks, after = looked_at([int(20 * at_s) for at_s in moments_s], moments_s)
    assert measure(before, after, looks).dispersion == pytest.approx(0.0, abs=1e-9)


def test_poisson_arrivals_between_unlike_looks_have_a_dispersion_of_one():
    rng = np.random.default_rng(0)
    moments_s = np.array([0.0, 0.5, 2.5, 3.0, 6.0, 6.5, 9.0])
    told = []
    for _ in range(200):
        arrivals = np.cumsum([0, *rng.poisson(40 * np.diff(moments_s))])
        before, *looks, after = looked_at(arrivals.tolist(), moments_s.tolist())
        told.append(measure(before, after, looks).dispersion)
    assert np.mean(told) == pytest.approx(1.0, abs=0.12)


def test_an_arrival_between_two_looks_at_nearly_one_moment_is_no_burst():
    moments_s = [0.0, 1.0, 2.0, 2.001, 3.0, 4.0, 4.999, 5.0]
    before, *looks, after = looked_at([0, 10, 20, 21, 30, 40, 49, 50], moments_s)
    assert measure(before, after, looks).dispersion == pytest.approx(0.0, abs=1e-9)
