"""LitServe serving our own MiniLM module: the peer of `server-throughput`.

python -m scripts.benchmarks.server.litserve_minilm PORT WORKERS THREADS MAX_BATCH_SIZE BATCH_TIMEOUT_S
"""

from __future__ import annotations

import sys

import litserve  # type: ignore[import-untyped]
import torch

from serving_adapter.models.loading import load_model


class MiniLMApi(litserve.LitAPI):
    threads = 1

    def setup(self, device: str) -> None:
        torch.set_num_threads(self.threads)
        self.model = load_model("minilm", {})

    def decode_request(self, request: dict) -> torch.Tensor:
        return torch.tensor(request["token_ids"])

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.run({"token_ids": x if x.dim() == 2 else x[None]})["embedding"]

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        return list(output)

    def encode_response(self, output: torch.Tensor) -> dict:
        return {"embedding": output.flatten().tolist()}


if __name__ == "__main__":
    port, workers, threads, max_batch_size = map(int, sys.argv[1:5])
    MiniLMApi.threads = threads
    api = MiniLMApi(max_batch_size=max_batch_size, batch_timeout=float(sys.argv[5]))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
