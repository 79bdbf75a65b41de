"""What a real server tells of its arrivals and of its busy instances, in a measurement."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc as triton

from envs.profiler import measure
from serving_adapter.target import OpenInferenceTarget
from serving_adapter.target.reading import Reading

CLOCKS_APART_S = 0.005
ROUNDED_S = 0.0002  # by so much two offsets may be apart from what they were


def connected(server) -> OpenInferenceTarget:
    target = OpenInferenceTarget(server.address)
    target.connect()
    return target


def until(target: OpenInferenceTarget, is_enough: Callable[[Reading], bool]) -> Reading:
    """A reading that has enough, and that comes clearly after what it has."""
    while not is_enough(reading := target.read()):
        pass
    enough_s = time.monotonic()
    while reading.at_s < enough_s + CLOCKS_APART_S:
        reading = target.read()
    return reading


def send(client: triton.InferenceServerClient, model: str, rows: int = 1) -> tuple[float, float]:
    """When a request was sent, and when its answer was there."""
    request = triton.InferInput("x", [rows, 16], "FP32")
    request.set_data_from_numpy(np.zeros((rows, 16), np.float32))
    sent_s = time.monotonic()
    client.infer(model, [request])
    return sent_s, time.monotonic()


def test_requests_come_back_in_order_and_at_their_moments(start_server) -> None:
    server = start_server("--model", "noop")
    target, rows = connected(server), [1, 3, 1, 16] * 10
    with triton.InferenceServerClient(server.address) as client:
        send(client, "noop")  # before the interval
        before = until(target, lambda reading: reading.success == 1)
        moments = [send(client, "noop", n) for n in rows]
        after = until(target, lambda reading: reading.success == 1 + len(rows))
    measurement = measure(before, after)
    summary = measurement.arrival_summary
    assert measurement.arrivals == len(summary.offsets_s) == len(rows)
    assert (summary.requests, summary.items) == ((1,) * len(rows), tuple(rows))
    assert list(summary.offsets_s) == sorted(summary.offsets_s)
    sent_s, answered_s = (np.array(column) for column in zip(*moments, strict=True))
    offsets_s = np.array(summary.offsets_s)
    # There is a moment at which the interval began, to which all offsets fit.
    assert max(sent_s - offsets_s) <= min(answered_s - offsets_s) + ROUNDED_S
    assert math.isfinite(measurement.dispersion)


def test_an_interval_has_the_arrivals_between_its_own_readings(start_server) -> None:
    server = start_server("--model", "noop")
    target = connected(server)
    with triton.InferenceServerClient(server.address) as client:
        first = target.read()
        for _ in range(2):
            send(client, "noop")
        middle = until(target, lambda reading: reading.success == 2)
        for _ in range(3):
            send(client, "noop")
        last = until(target, lambda reading: reading.success == 5)
    intervals = (first, middle), (middle, last), (first, last)
    assert [len(measure(*ends).arrival_summary.offsets_s) for ends in intervals] == [2, 3, 5]


def test_more_than_a_server_remembers_is_not_told(start_server) -> None:
    target = connected(start_server("--model", "noop"))
    before, after = target.read(), target.read()
    assert after.recent_arrivals is not None
    newest = after.recent_arrivals._replace(complete_since_s=(before.at_s + after.at_s) / 2)
    measurement = measure(before, replace(after, recent_arrivals=newest))
    assert measurement.arrival_summary.offsets_s == ()
    assert math.isnan(measurement.dispersion)


def test_a_request_that_the_queue_has_no_room_for_arrived_too(start_server) -> None:
    server = start_server("--model", "sleep", "--model-option", "ms=300", "--max-queue-size", 1)
    target = connected(server)
    before = target.read()
    with triton.InferenceServerClient(server.address) as client:
        answers, all_answered = [], threading.Event()

        def answered(result, error) -> None:
            answers.append(error)
            if len(answers) == 6:
                all_answered.set()

        request = triton.InferInput("x", [1, 16], "FP32")
        request.set_data_from_numpy(np.zeros((1, 16), np.float32))
        for _ in range(6):
            client.async_infer("sleep", [request], answered)
        assert all_answered.wait(30)
        after = until(target, lambda reading: reading.answered == 6)
    measurement = measure(before, after)
    assert measurement.failures > 0
    assert sum(measurement.arrival_summary.requests) == measurement.arrivals == 6


@pytest.mark.parametrize(("clients", "busy"), [(1, 1.0), (4, 2.0)])
def test_the_mean_number_of_busy_instances_is_told(start_server, clients: int, busy: float) -> None:
    server = start_server("--model", "sleep", "--model-option", "ms=20", "--instances", 2)
    target = connected(server)
    before = target.read()

    def load() -> None:
        with triton.InferenceServerClient(server.address) as client:
            for _ in range(25):
                send(client, "sleep")

    threads = [threading.Thread(target=load) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = until(target, lambda reading: reading.success == 25 * clients)
    rows = measure(before, after).telemetry
    assert all(1.0 <= row.mean_busy <= 2.0 for row in rows)
    mean = sum(row.count * row.mean_busy for row in rows) / sum(row.count for row in rows)
    assert mean == pytest.approx(busy, abs=0.15)


def test_a_batch_that_begins_alone_tells_who_came_beside_it(start_server) -> None:
    server = start_server(
        "--model", "sleep", "--model-option", "ms=10", "--model-option", "per_item_ms=400",
        "--instances", 2, "--max-batch-size", 4,
    )  # fmt: skip
    target = connected(server)
    before = target.read()
    with triton.InferenceServerClient(server.address) as client:
        long = threading.Thread(target=send, args=(client, "sleep", 4))
        long.start()
        until(target, lambda reading: reading.in_flight == 1)
        send(client, "sleep")
        long.join()
    after = until(target, lambda reading: reading.success == 2)
    (of_one, of_four) = sorted(measure(before, after).telemetry, key=lambda row: row.batch_size)
    assert (of_one.busy_instances, of_four.busy_instances) == (2, 1)
    # Each tells of the same time side by side, however much of it there was.
    side_by_side_s = (of_one.mean_busy - 1) * of_one.total_s
    assert 0 < side_by_side_s < of_one.total_s * 1.05
    assert (of_four.mean_busy - 1) * of_four.total_s == pytest.approx(side_by_side_s, rel=0.1)
