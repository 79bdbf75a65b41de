"""`simulator`: a sweep over configurations of ten instances, against SimPy on the same queues."""

from __future__ import annotations

from collections.abc import Generator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import simpy

from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Simulation

INSTANCES = 10
CONFIGURATIONS = [
    {"instances": INSTANCES, "inter_op_threads": i, "intra_op_threads": a}
    for i in range(1, 6)
    for a in range(1, 11)
]
LOAD = 0.8  # of each configuration's capacity
REQUESTS = 100_000  # a configuration, in our simulator
PEER_REQUESTS = 4_000  # the first of the same, in SimPy
ROUNDS = 3
REACH_PER_S = 10e6
REACH_RATIO = 100
LARGEST_DIFFERENCE = 0.01  # between the two mean latencies, of any configuration


def run() -> dict[str, Any]:
    machine = Machine.invent(seed=0)
    unit_s = np.cumsum(np.random.default_rng(0).exponential(size=REQUESTS))
    arrivals = []
    for configuration in CONFIGURATIONS:
        capacity_per_s = INSTANCES / machine.table(configuration)[-1, 0]
        arrivals.append(unit_s / (LOAD * capacity_per_s))
    _our_means_s(machine, [times_s[:10] for times_s in arrivals])  # compiles

    ours_per_s, peer_per_s, differences = [], [], []
    print(
        f"{len(CONFIGURATIONS)} configurations of {INSTANCES} instances, each at {LOAD:.0%} of its capacity"
    )
    print(f"{'round':>5} {'ours':>14} {'SimPy':>10} {'ratio':>6}   requests/s    largest difference of means")
    for i in range(ROUNDS):
        began = perf_counter()
        _our_means_s(machine, arrivals)
        ours_per_s.append(len(arrivals) * REQUESTS / (perf_counter() - began))
        began = perf_counter()
        theirs_s = [
            _simpy_mean_s(times_s[:PEER_REQUESTS], machine.table(configuration)[:, 0])
            for times_s, configuration in zip(arrivals, CONFIGURATIONS, strict=True)
        ]
        peer_per_s.append(len(arrivals) * PEER_REQUESTS / (perf_counter() - began))
        ours_s = _our_means_s(machine, [times_s[:PEER_REQUESTS] for times_s in arrivals])
        differences.append(float(np.max(np.abs(np.divide(ours_s, theirs_s) - 1))))
        ratio = ours_per_s[-1] / peer_per_s[-1]
        print(f"{i:5} {ours_per_s[-1]:14,.0f} {peer_per_s[-1]:10,.0f} {ratio:6.0f} {differences[-1]:37.1e}")

    value, peer = median(ours_per_s), median(peer_per_s)
    ratio = median(a / b for a, b in zip(ours_per_s, peer_per_s, strict=True))
    print(f"reach: {REACH_PER_S:,.0f}/s, {REACH_RATIO} times SimPy, means within {LARGEST_DIFFERENCE:.0%}")
    return {
        "value": round(value),
        "unit": "requests/s",
        "peer": round(peer),
        "ratio": round(ratio),
        "reach": REACH_RATIO,
        "holds": value >= REACH_PER_S and ratio >= REACH_RATIO and max(differences) <= LARGEST_DIFFERENCE,
    }


def _our_means_s(machine: Machine, arrivals: list[np.ndarray]) -> list[float]:
    """The mean latency of each configuration under its own arrivals."""
    means_s = []
    for configuration, times_s in zip(CONFIGURATIONS, arrivals, strict=True):
        outcome = Simulation(machine).run(times_s, None, configuration, np.inf)
        means_s.append(float(np.mean(outcome.finish_s) - np.mean(outcome.arrival_s)))
    return means_s


def _simpy_mean_s(times_s: np.ndarray, service_s: np.ndarray) -> float:
    """The mean latency, where `service_s[n - 1]` is the service time with n instances busy."""
    environment = simpy.Environment()
    instances = simpy.Resource(environment, capacity=INSTANCES)
    latencies_s: list[float] = []

    def request() -> Generator[simpy.Event, Any, None]:
        arrived_s = environment.now
        with instances.request() as turn:
            yield turn
            yield environment.timeout(service_s[instances.count - 1])
        latencies_s.append(environment.now - arrived_s)

    def source() -> Generator[simpy.Event, Any, None]:
        for time_s in times_s.tolist():
            yield environment.timeout(time_s - environment.now)
            environment.process(request())

    environment.process(source())
    environment.run()
    return float(np.mean(latencies_s))
