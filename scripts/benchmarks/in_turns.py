"""Latencies of a few configurations of a running server, in turns, as single intervals are noisy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from envs.live import LiveServing
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from serving_adapter.target import Target


def latencies_in_turns_ms(
    target: Target,
    space: ConfigurationSpace,
    numbers: Sequence[int],
    rounds: int,
    interval_s: float,
    settle_s: float,
) -> dict[int, float]:
    """Median mean latency over several rounds, all configurations in each; nothing is aborted.

    RuntimeError if a configuration answered nothing in every round.
    """
    env = LiveServing(target, space, MeanLatency(), interval_s, settle_s)
    env.reset(options={"configuration": space.configuration(numbers[0])})
    measured = [{n: float(env.step(space.action(n))[4]["cost"]) for n in numbers} for _ in range(rounds)]
    medians_ms = {}
    for n in numbers:
        answered = [latencies_ms[n] for latencies_ms in measured if math.isfinite(latencies_ms[n])]
        if not answered:
            raise RuntimeError(f"no request was answered under {space.configuration(n)}")
        medians_ms[n] = median(answered)
    return medians_ms
