"""Applications of Ray Serve as their authors write them, for tests. Only replicas on a cluster import it."""

# mypy: ignore-errors
import asyncio

from ray import serve

PER_BATCH_S, PER_REQUEST_S = 0.03, 0.001
MOST_AT_ONCE = 64


@serve.deployment(max_ongoing_requests=32)
class Doubled:
    """Answers the double of a number, in batches that take a while."""

    def reconfigure(self, config):
        if config["max_batch_size"] > MOST_AT_ONCE:
            raise ValueError(f"no more than {MOST_AT_ONCE} rows fit into the memory of this model")
        self.doubled.set_max_batch_size(config["max_batch_size"])
        self.doubled.set_batch_wait_timeout_s(config["batch_wait_timeout_s"])

    @serve.batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    async def doubled(self, numbers):
        await asyncio.sleep(PER_BATCH_S + PER_REQUEST_S * len(numbers))
        return [2 * number for number in numbers]

    async def __call__(self, request):
        return await self.doubled(int(request.query_params["number"]))


@serve.deployment
class Greeting:
    """Has nothing to tune but its replicas."""

    async def __call__(self, request):
        return "hello"


doubled = Doubled.bind()
greeting = Greeting.bind()
