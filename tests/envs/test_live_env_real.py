"""The environment over real servers."""

import math
import os
import threading
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from envs.live import LiveServing
from envs.target_space import cores_of, default_space
from rrl.interval import Watch
from serving_adapter.target import OpenInferenceTarget, TargetError


@contextmanager
def steady_load(address, pause_s=0.01):
    """A client that sends a request every so often; what failed is in the list it gives."""
    stop, failures = threading.Event(), []

    def send():
        with triton.InferenceServerClient(address) as client:
            tensor = client.get_model_metadata("sleep").inputs[0]
            data = np.zeros((1, *tensor.shape[1:]), np.float32)
            request = triton.InferInput(tensor.name, data.shape, tensor.datatype)
            request.set_data_from_numpy(data)
            while not stop.wait(pause_s):
                try:
                    client.infer("sleep", [request], client_timeout=5.0)
                except triton.InferenceServerException as error:
                    failures.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(30)


REAL: dict[str, Any] = {"interval_s": 1.5, "settle_s": 0.3, "poll_s": 0.1}


def test_a_real_server_is_tuned_while_it_serves(start_server, tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text("secret")
    server = start_server("--model", "sleep", "--model-option", "ms=5", "--control-key-file", key_file)
    with pytest.raises(TargetError, match="wants a control key"):
        LiveServing(server.address)
    target = OpenInferenceTarget(server.address, control_key="secret")
    target.connect()
    assert target.notes == []
    with steady_load(server.address) as failures:
        env = LiveServing(target, "instances=1:2,max_batch_size=1,4", **REAL)
        seen = []
        env.reset(seed=0)
        wanted = {"instances": 2, "max_batch_size": 4}

        def interrupt(progress):
            seen.append(progress)
            return ""

        watch = Watch(interrupt)
        interval = env.run(env.space.number(wanted), watch)
        assert target.configuration().items() >= wanted.items()
        env.close()
    measurement = interval.measurement
    assert failures == []
    assert measurement.gap == measurement.aborted == ""
    assert measurement.completions > 0
    assert measurement.failures == 0
    assert abs(measurement.arrivals - measurement.completions) <= 2
    assert measurement.latency.p50_ms <= measurement.latency.p95_ms <= measurement.latency.p99_ms
    assert measurement.service.mean_ms >= 4.9
    assert sum(row.count for row in measurement.telemetry) > 0
    assert all(row.busy_instances >= 1 for row in measurement.telemetry)
    assert 0 <= measurement.cpu_utilisation <= 1
    assert env.observation_space.contains(interval.observation)
    assert seen
    assert seen[-1].arrivals > 0


def test_a_server_on_fewer_cores_than_the_tuner_beside_it_tells_how_many(start_server):
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        server = start_server("--model", "noop")
    finally:
        os.sched_setaffinity(0, mine)
    target = OpenInferenceTarget(server.address)
    target.connect(control=False)
    assert cores_of(target) == target.read().cores == 1
    assert default_space(target.knobs(), cores_of(target)).to_json()["intra_op_threads"] == [1]
    target.close()


def test_a_real_server_that_dies_and_returns_gets_its_configuration_again(start_server):
    arguments = ("--model", "sleep", "--model-option", "ms=5")
    server = start_server(*arguments)
    env = LiveServing(server.address, "instances=1:2,max_batch_size=1,4", **REAL)
    env.reset(seed=0)
    server.process.kill()
    server.process.wait(30)
    port = server.address.rpartition(":")[2]
    thread = threading.Thread(target=start_server, args=(*arguments, "--port", port))
    thread.start()
    wanted = {"instances": 2, "max_batch_size": 1}
    _, _, _, _, info = env.step(env.space.action(env.space.number(wanted)))
    thread.join(60)
    assert "is lost" in info["measurement"].gap
    assert math.isnan(info["cost"])
    assert env.target.configuration().items() >= wanted.items()
    _, _, _, _, info = env.step(env.space.action(env.space.number(wanted)))
    assert info["measurement"].gap == ""
    env.close()
