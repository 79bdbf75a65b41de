"""Runs one benchmark and prints, as its last line, its figure beside its peer's as one JSON object."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from typing import NamedTuple

from scripts.kept_rows import OtherSetting
from serving_adapter.flags.parsing import fail
from serving_adapter.standard_streams import say


class Benchmark(NamedTuple):
    module: str  # within scripts.benchmarks
    text: str  # what it measures, and against what


BENCHMARKS = {
    "live-changes": Benchmark(
        "server.live_changes", "configuration changes under load: failed requests, time until in force"
    ),
    "server-overhead": Benchmark(
        "server.overhead", "requests/s of a no-op model, against a bare grpc.aio echo"
    ),
    "rest-overhead": Benchmark("server.rest", "time of a request over HTTP, against gRPC"),
    "tap-overhead": Benchmark("server.tap", "latency that rrl-tap adds at 500 requests/s, against none"),
    "server-throughput": Benchmark(
        "server.throughput", "MiniLM requests/s, against bare processes and LitServe"
    ),
    "ray-throughput": Benchmark(
        "ray.throughput", "MiniLM requests/s on two nodes of a Ray cluster, against as many workers here"
    ),
    "ray-stock": Benchmark(
        "ray.stock", "MiniLM requests/s on two nodes of a Ray cluster, against a stock Ray Serve application"
    ),
    "ray-changes": Benchmark(
        "ray.changes",
        "configuration changes on a Ray cluster under load: failed requests, time until in force",
    ),
    "ray-node-kills": Benchmark(
        "ray.node_kills", "a node of a Ray cluster killed every 10 s: failed requests, what the rest serves"
    ),
    "ray-units": Benchmark(
        "ray.units", "MiniLM on units of one, two and three nodes of a Ray cluster: latency, same answers"
    ),
    "ray-tune": Benchmark(
        "ray.tuned", "what rrl-tune leaves on a Ray cluster, and of a stock application, against a sweep"
    ),
    "ray-scale": Benchmark(
        "ray.scale", "how decisions, learning and regret grow to 1,000 nodes, on simulated clusters"
    ),
    "inter-op": Benchmark(
        "server.inter_op", "latency of Inception-V3 with one and with two inter-op threads"
    ),
    "tuner-overhead": Benchmark("tuner.speed.overhead", "the tuner's own use of the machine"),
    "simulator": Benchmark("tuner.speed.simulator", "simulated requests/s, against SimPy"),
    "environment": Benchmark(
        "tuner.speed.environment",
        "simulated steps/s of 100 requests, against gymnasium's vector of environments",
    ),
    "compare": Benchmark("tuner.speed.compare", "minutes that rrl-compare takes for ten agents"),
    "embedded-tune": Benchmark(
        "tuner.live.embedded_tune", "what `make tune` gains, against an exhaustive sweep"
    ),
    "joint": Benchmark(
        "tuner.simulated.joint", "two models of one machine tuned together, against in turn and a joint sweep"
    ),
    "bursts": Benchmark(
        "tuner.real_traffic.bursts",
        "what rrl-tune leaves under bursts, against a sweep over the same arrivals",
    ),
    "neighbour": Benchmark(
        "tuner.real_traffic.neighbour",
        "what rrl-tune leaves beside a noisy neighbour, against a sweep beside the same",
    ),
    "model-error": Benchmark(
        "tuner.real_traffic.model_error",
        "predictions of recorded runs with what was learned of the queueing model's error and without",
    ),
    "service-time-prior": Benchmark(
        "tuner.simulated.service_time_prior",
        "predictions of service times with the learned prior and without",
    ),
    "serf-model": Benchmark(
        "tuner.serf_model.benchmark", "mean latency that SERF's model predicts, against the real server"
    ),
    "live-comparison": Benchmark(
        "tuner.live.comparison", "agents on the embedded server side by side, against an exhaustive sweep"
    ),
    "live-papers": Benchmark(
        "tuner.live.papers",
        "RRL, CAPES and DeepRM in turns on the embedded server, hundreds of intervals each",
    ),
    "reach": Benchmark(
        "tuner.simulated.reach",
        "how soon and how near to the best agents come, on simulated machines out of family too",
    ),
    "ablation": Benchmark(
        "tuner.simulated.ablation",
        "what each setting of the default agent brings, on simulated machines out of family too",
    ),
    "break-even": Benchmark(
        "tuner.simulated.break_even",
        "when tuning has paid for itself against the rule of thumb, by utilisation",
    ),
    "failing": Benchmark(
        "tuner.simulated.failing",
        "what each rule about failures brings, on simulated servers where requests fail",
    ),
    "traffic-simulated": Benchmark(
        "tuner.simulated.traffic",
        "what rrl-tune leaves under bursts and beside a neighbour, on simulated servers",
    ),
    "calibration": Benchmark(
        "tuner.simulated.calibration",
        "how often what the default agent believes holds: coverage, PIT, P(better)",
    ),
    "advice": Benchmark(
        "tuner.simulated.advice",
        "how often what rrl-tune --advise recommends is no worse, on simulated machines",
    ),
    "pretrained": Benchmark(
        "tuner.simulated.pretrained",
        "live decisions that agents need, pre-trained on a profiled machine and not",
    ),
    "store-open": Benchmark("store.open", "time to open a resident model of 4.8 MB to 6.4 GB"),
    "store-cold-start": Benchmark(
        "store.cold_start",
        "from a ready process to its first answer: store hit and miss, private loads, ideal",
    ),
    "store-memory": Benchmark(
        "store.memory", "memory of eight processes with one 500 MB model (PSS), against private copies"
    ),
    "store-first-open": Benchmark("store.first_open", "an open that every tier misses, against a plain load"),
    "store-workload": Benchmark(
        "store.workload",
        "cold starts of many users with inference, by clients and share of models: latency, requests/s",
    ),
    "store-oversubscribed": Benchmark(
        "store.oversubscribed", "37 models with room for a third of them: policies against private loads"
    ),
    "store-churn": Benchmark(
        "store.churn", "wrong bytes and leaks after 10,000 random opens, closes, kills and evictions"
    ),
    "store-dedup": Benchmark(
        "store.dedup", "memory of fine-tuned models that share frozen layers, by granularity"
    ),
    "parity-accuracy": Benchmark(
        "parity.accuracy", "accuracy of what parity models reconstruct, and the time to train them"
    ),
    "parity-tail": Benchmark(
        "parity.tail",
        "p99.9 with slow workers: ParM against Equal-Resources, hedging, replication and others",
    ),
    "parity-coding": Benchmark(
        "parity.coding", "time to encode queries and to decode outputs, against ParM's in C++"
    ),
    "parity-kill": Benchmark(
        "parity.kill", "answers while a worker is killed every 2 s: failed, exact, marked as reconstructed"
    ),
    "triton-head-to-head": Benchmark(
        "triton.head_to_head", "rrl-tune, Model Analyzer's quick search, Optuna and others on a stock Triton"
    ),
    "model-analyzer-quick-start": Benchmark(
        "triton.quick_start", "the quick start of Model Analyzer by rrl-tune, against Model Analyzer itself"
    ),
    "triton-simulated": Benchmark(
        "triton.simulated", "the same on some two hundred simulated stock Tritons, in minutes"
    ),
    "triton-joint": Benchmark(
        "triton.joint", "two models of a stock Triton tuned together, against in turn and a joint sweep"
    ),
    "triton-load-steps": Benchmark(
        "triton.load_steps", "intervals until near the best again after the load of a stock Triton stepped"
    ),
    "triton-changes": Benchmark(
        "triton.changes", "configuration changes of a stock Triton under load: failed requests, time each"
    ),
    "triton-change-cost": Benchmark(
        "triton.change_cost",
        "what users feel of a change of a stock Triton, instances in turns or all at once",
    ),
    "triton-overhead": Benchmark(
        "triton.overhead", "what tuning costs a stock Triton: calls, processor time, latency"
    ),
}


def main() -> int:
    if sys.argv[1:] == ["--list"]:
        for name, benchmark in BENCHMARKS.items():
            say(f"{name:20} {benchmark.text}")
        return 0
    if len(sys.argv) < 2 or sys.argv[1] not in BENCHMARKS:
        what = f"unknown benchmark {sys.argv[1]!r}" if sys.argv[1:] else "no benchmark is named"
        fail(f"{what}; known: {', '.join(BENCHMARKS)}; scripts/reproduce --list names the papers' figures")
    module = importlib.import_module(f"scripts.benchmarks.{BENCHMARKS[sys.argv[1]].module}")
    if sys.argv[2:] and not hasattr(module, "Options"):
        print(f"scripts/bench {sys.argv[1]} takes no options", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers it started end with it
    try:
        result = module.run()
    except OtherSetting as error:
        fail(str(error))
    print(json.dumps({"name": sys.argv[1]} | result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
