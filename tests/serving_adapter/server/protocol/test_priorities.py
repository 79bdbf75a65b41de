"""The request parameter `priority`: stock clients at both doors get what they ask for, in that order."""

from __future__ import annotations

import json
import queue
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient import http as rest
from tritonclient.utils import InferenceServerException

from tests.support.models.gated import WAITS
from tests.support.waiting import until

LEVELS = 3


def row(kind: Any, value: float = 0.0) -> Any:
    tensor = kind.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.full((1, 16), value, np.float32))
    return tensor


def test_requests_are_served_by_their_priority_and_then_in_turn(start_server, tmp_path):
    gate = tmp_path / "gate"
    model = ("--model", "tests.support.models.gated:numbered", "--model-option", f"gate={gate}")
    server = start_server(*model, "--priority-levels", LEVELS, "--default-priority-level", 2)
    rest_address = server.rest_url.removeprefix("http://").removesuffix("/v2")
    answers = dict[str, queue.Queue[int]]()

    def send(name: str, value: float = 0.0, **priority: int) -> None:
        answers[name] = queue.Queue()

        def answered(result: Any, error: Any) -> None:
            answers[name].put(-1 if error else int(result.as_numpy("number")[0, 0]))

        client.async_infer("numbered", [row(triton, value)], answered, **priority)
        until_there(len(answers) + len(later))

    def until_there(requests: int) -> None:
        until(lambda: server.counted("rrl_in_flight_request_count") == requests)

    def over_http() -> int:
        with rest.InferenceServerClient(rest_address) as by_http:
            result = by_http.infer("numbered", [row(rest)], priority=LEVELS)
            return int(result.as_numpy("number")[0, 0])

    later = list[Future[int]]()
    with triton.InferenceServerClient(server.address) as client, ThreadPoolExecutor(1) as threads:
        send("running", WAITS)
        later.append(threads.submit(over_http))
        until_there(2)
        send("default")
        send("second", priority=2)
        send("first", priority=1)
        gate.touch()
        order = [answers[name].get(timeout=60) for name in ("running", "first", "default", "second")]
        order.append(later[0].result(60))
        assert order == list(range(order[0], order[0] + 5))

        config = client.get_model_config("numbered", as_json=True)["config"]
        assert int(config["dynamic_batching"]["priority_levels"]) == LEVELS
        assert int(config["dynamic_batching"]["default_priority_level"]) == 2
        client.load_model("numbered", config=json.dumps(config | {"max_batch_size": 2}))
        config["dynamic_batching"]["priority_levels"] = "4"
        with pytest.raises(InferenceServerException, match=r"changes 'dynamic_batching\.priority_levels'"):
            client.load_model("numbered", config=json.dumps(config))
        with pytest.raises(InferenceServerException, match="a level from 1, which is served first, to 3"):
            client.infer("numbered", [row(triton)], priority=LEVELS + 1)
