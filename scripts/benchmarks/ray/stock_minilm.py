"""MiniLM as a stock application of Ray Serve, as its documentation says one is written.

Only replicas on a cluster import it.
"""

# mypy: ignore-errors
import torch
from ray import serve

from serving_adapter.models.loading import load_model


@serve.deployment(max_ongoing_requests=256)
class MiniLMDeployment:
    """Answers the embedding of a request's tokens; those that wait share batches."""

    def __init__(self):
        torch.set_num_threads(1)
        self._model = load_model("minilm", {})

    def reconfigure(self, config):
        self.embedded.set_max_batch_size(config["max_batch_size"])
        self.embedded.set_batch_wait_timeout_s(config["batch_wait_timeout_s"])

    @serve.batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    async def embedded(self, rows):
        return self._model.run({"token_ids": torch.tensor(rows)})["embedding"].tolist()

    async def __call__(self, request):
        return await self.embedded((await request.json())["token_ids"])


application = MiniLMDeployment.bind()
