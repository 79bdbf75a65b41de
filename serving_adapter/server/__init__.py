"""The local inference server: an asyncio front process, a zygote per model, and its workers."""

import os

if not hasattr(os, "memfd_create"):
    raise ImportError(
        "the local server needs Linux: give rrl-tune the --target of a server that runs, or run it on Linux"
    )

# The front starts zygotes while gRPC's threads run. Its fork handlers would complain about that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
