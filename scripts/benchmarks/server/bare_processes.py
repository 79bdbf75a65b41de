"""MiniLM in bare processes, without a server: the physical limit of `server-throughput`."""

from __future__ import annotations

import multiprocessing
import time

from scripts.serving.minilm_requests import TOKENS


def items_per_s(processes: int, threads: int, batch_size: int, seconds: float) -> float:
    """Throughput of some processes that do nothing but run the model on one fixed batch."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    arguments = (threads, batch_size, seconds, start, results)
    running = [context.Process(target=_run, args=arguments) for _ in range(processes)]
    for process in running:
        process.start()
    total = sum(results.get(timeout=120) for _ in running)
    for process in running:
        process.join()
    return total


def _run(threads: int, batch_size: int, seconds: float, start, results) -> None:  # type: ignore[no-untyped-def]
    import torch

    from serving_adapter.models.loading import load_model

    torch.set_num_threads(threads)
    model = load_model("minilm", {})
    inputs = {"token_ids": torch.randint(1000, 20000, (batch_size, TOKENS))}
    for _ in range(3):
        model.run(inputs)
    start.wait()
    begin_s, batches = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - begin_s) < seconds:
        model.run(inputs)
        batches += 1
    results.put(batches * batch_size / elapsed_s)
