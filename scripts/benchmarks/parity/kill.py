"""`parity-kill`: a worker is killed every 2 s under load; is every answer there, and exact or marked?

The deployed model is an MLP trained on scikit-learn's digits, with a parity model trained for it; both take
some seconds. Requests are the digits' images, and each answer is compared with what the deployed model says
in this process. Killed are deployed and parity workers alike. The peer is the same server without parity,
which answers what a killed worker held by running it again. Both tell how many workers they had to replace:
where none was killed, nothing has been shown.

    scripts/bench parity-kill [--seconds 60] [--rate 300]
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import numpy as np
import torch
from sklearn.datasets import load_digits
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.serving.metrics_page import summed
from scripts.serving.processes import serving_with_metrics
from serving_adapter.flags.parsing import parse
from serving_adapter.models.loading import load_model

WORKERS = 4
TOLERANCE = 1e-3  # of logits: another batch, another order of additions


@dataclass(frozen=True)
class Options:
    """Answers while workers are killed."""

    seconds: float = 60.0
    """Of each mode."""
    rate: float = 300.0
    """Requests a second, Poisson."""
    every_s: float = 2.0
    """Seconds between two kills."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, parity = folder / "base.safetensors", folder / "parity.safetensors"
        _rrl_parity("train-base", "--architecture", "mlp", "--data", "digits", "--out", base)
        _rrl_parity("train", "--model", base, "--data", "digits", "--k", 2, "--out", parity)
        faults = folder / "faults.yaml"
        faults.write_text(f"faults: [{{kind: kill, every_s: {options.every_s}}}]")
        images = (load_digits().images[:, None] / 16).astype(np.float32)
        model = load_model(str(base), {})
        exact = model.run({"x": torch.from_numpy(images)})["y"].numpy()
        tallies: dict[str, Counter[str]] = {}
        replaced: dict[str, int] = {}
        for mode in ("none", "parity"):
            flags = (
                "--instances", WORKERS, "--intra-op-threads", 1, "--resilience", mode,
                "--parity-model", parity, "--faults", faults,
            )  # fmt: skip
            with serving_with_metrics(str(base), *flags) as (address, metrics_url):
                tallies[mode] = asyncio.run(_drive(address, base.stem, images, exact, options))
                replaced[mode] = summed(metrics_url, "rrl_worker_replacements")
            _print(mode, tallies[mode], replaced[mode])
    return outcome(tallies, replaced)


def outcome(tallies: Mapping[str, Counter[str]], replaced: Mapping[str, int]) -> dict[str, Any]:
    """Of the answers, and of the workers that the servers replaced, by mode."""
    parity_tally = tallies["parity"]
    wrong = parity_tally["failed"] + parity_tally["unmarked"]
    return {
        "value": wrong,
        "unit": "requests failed, or answered neither exactly nor marked as reconstructed",
        "peer": tallies["none"]["failed"] + tallies["none"]["unmarked"],
        "ratio": None,
        "reach": 0,
        "holds": wrong == 0 and min(replaced.values()) > 0,
        "answers": {mode: dict(tally) for mode, tally in tallies.items()},
        "replaced": dict(replaced),
    }


def _rrl_parity(*arguments: object) -> None:
    command = [sys.executable, "-m", "serving_adapter.parity.command_line", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def _drive(
    address: str, name: str, images: np.ndarray, exact: np.ndarray, options: Options
) -> Counter[str]:
    """Sends images at random times and counts what comes back."""
    tally: Counter[str] = Counter()
    rng = np.random.default_rng(0)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GRPCInferenceServiceStub(channel)

        async def ask(i: int) -> None:
            request = pb.ModelInferRequest(model_name=name)
            request.inputs.add(name="x", datatype="FP32", shape=[1, *images.shape[1:]])
            request.raw_input_contents.append(images[i].tobytes())
            try:
                response = await stub.ModelInfer(request, timeout=30)
            except grpc.aio.AioRpcError:
                tally["failed"] += 1
                return
            answer = np.frombuffer(response.raw_output_contents[0], np.float32)
            tally[_kind(answer, exact[i], "reconstructed" in response.parameters)] += 1

        start_s, asked = perf_counter(), set[asyncio.Task[None]]()
        intended_s = 0.0
        while (intended_s := intended_s + rng.exponential(1 / options.rate)) < options.seconds:
            await asyncio.sleep(max(0.0, intended_s - (perf_counter() - start_s)))
            asked.add(asyncio.create_task(ask(int(rng.integers(len(images))))))
        await asyncio.gather(*asked)
    return tally


def _kind(answer: np.ndarray, exact: np.ndarray, marked: bool) -> str:
    """An answer's group; reconstructions are told apart by whether they name the deployed model's class."""
    if not marked:
        return "exact" if np.allclose(answer, exact, atol=TOLERANCE) else "unmarked"
    agrees = answer.argmax() == exact.argmax()
    return "reconstructed, same class" if agrees else "reconstructed, other class"


def _print(mode: str, tally: Counter[str], replaced: int) -> None:
    counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(tally.items()))
    print(f"{mode:8} {sum(tally.values()):,} requests, {replaced} workers replaced: {counts}", flush=True)
