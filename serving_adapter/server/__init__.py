"""The local inference server: an asyncio front process, a zygote per model, and its workers."""

import os

# The front starts zygotes while gRPC's threads run; its fork handlers are not wanted there, and say so.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
