"""What a batch is made of."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from serving_adapter.server.requests import InputTensor, Request, fitting
from serving_adapter.tensors import TensorSpec


@pytest.mark.parametrize(
    ("shapes", "most_bytes", "count"),
    [
        ([(1, 4), (1, 4), (1, 4)], 48, 3),
        ([(1, 4), (1, 4), (1, 4)], 47, 2),
        ([(1, 1), (1, 1), (1, 100)], 400, 2),  # padding counts: three rows of 100
        ([(1, 10, 1), (1, 1, 10)], 400, 1),  # both are padded to 10 x 10
        ([(3, 100), (1, 1)], 40, 1),  # the first runs, however large
    ],
)
def test_a_batch_is_bounded_in_bytes_with_its_padding(shapes, most_bytes, count):
    specs = {"x": TensorSpec("x", "FP32", (-1,) * (len(shapes[0]) - 1), pad_value=0)}
    with closing(asyncio.new_event_loop()) as loop:
        requests = [Request([InputTensor(b"", shape)], None, loop.create_future(), 0) for shape in shapes]
    assert fitting(requests, specs, most_bytes) == count
