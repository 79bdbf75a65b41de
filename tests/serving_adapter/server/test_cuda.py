"""The same server on a GPU; skipped where there is none."""

from __future__ import annotations

import json
import urllib.request

import numpy as np
import pytest
import torch
from tritonclient import grpc as triton

from tests.support.servers.embeddings import embedding

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]


def test_a_gpu_answers_as_the_processor_does_under_any_configuration(start_server):
    token_ids = np.random.default_rng(0).integers(1000, 20000, (3, 24))
    expected = embedding(start_server("--model", "minilm").address, token_ids)
    server = start_server("--model", "minilm", "--device", "cuda")
    with triton.InferenceServerClient(server.address) as client:
        config = client.get_model_config("minilm", as_json=True)["config"]
        for instances in (1, 2, 1):
            config["instance_group"][0]["count"] = instances
            client.load_model("minilm", config=json.dumps(config))
            np.testing.assert_allclose(embedding(server.address, token_ids), expected, atol=1e-3)
    assert "nv_gpu_utilization" in urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
