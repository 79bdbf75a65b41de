"""Configurations under a closed loop, compiled: each of so many clients sends again once it is answered.

The arrivals are a consequence of the configuration, so a replay of arrivals that were seen under another one
would tell nothing. What is simulated otherwise is what `kernels` does in turn: first come, first served,
batches by size or delay, a batch's time fixed at its start.

| symbol | here | meaning |
|---|---|---|
| N | `clients` | requests that are under way, each in the server or with its client |
| X | answers per second | |
| R | mean latency in the server | |
| Z | `think_s` | mean time from an answer to the client's next request: network, and its own work |

X = N / (R + Z), the interactive response time law (Lazowska et al., Quantitative System Performance, 1984,
section 3.4). The first answers are left out, as all clients of a simulation begin at once.
"""

from __future__ import annotations

import numpy as np

from rrl.queueing.compiling import compiled as _compiled

SKIPPED_TURNS = 2  # of all clients, before anything counts


@_compiled
def closed_loop_ms(
    instances: np.ndarray,  # (K,) int
    full_size: np.ndarray,  # (K,) int
    delay_s: np.ndarray,  # (K,)
    table: np.ndarray,  # (K,) int: which table of service times
    scale: np.ndarray,  # (K,): what the times of that table are multiplied by
    service_time_s: np.ndarray,  # (tables, N, B)
    factors: np.ndarray,  # variation: batch number k takes factors[k % len(factors)] times as long
    slowness: np.ndarray,  # (W,): what all service times are multiplied by
    clients: int,
    answers: int,
    think_s: float,
    turns: np.ndarray,  # think time number k is think_s * turns[k % len(turns)]
) -> np.ndarray:
    """(K, W, 3): mean and p95 latency in ms, and answers per second."""
    result = np.empty((len(instances), len(slowness), 3))
    coming_s = np.empty(clients)  # a ring: when those who are not in service come, or came, in order
    latency_s = np.empty(answers)
    for k in range(len(instances)):
        c, full, delay = instances[k], full_size[k], delay_s[k]
        finish_s = np.empty(c)
        sizes = np.empty(c, np.int64)
        since_s = np.empty((c, full))  # arrivals of the requests in service
        for w in range(len(slowness)):
            finish_s[:] = np.inf
            coming_s[:] = 0.0
            head, n, waiting, busy, started, turned = 0, clients, 0, 0, 0, 0
            now_s, began_s = 0.0, 0.0
            skipped, counted = 0, 0
            while counted < answers:
                while waiting < n and coming_s[(head + waiting) % clients] <= now_s:
                    waiting += 1
                may_start = busy < c and waiting > 0
                if may_start and (waiting >= full or now_s >= coming_s[head] + delay):
                    size = min(waiting, full)
                    slot = 0
                    while finish_s[slot] < np.inf:
                        slot += 1
                    for i in range(size):
                        since_s[slot, i] = coming_s[(head + i) % clients]
                    head, n, waiting = (head + size) % clients, n - size, waiting - size
                    time_s = scale[k] * slowness[w] * service_time_s[table[k], busy, size - 1]
                    finish_s[slot] = now_s + time_s * factors[started % len(factors)]
                    sizes[slot] = size
                    busy += 1
                    started += 1
                    continue
                slot = int(np.argmin(finish_s))
                next_s = finish_s[slot]
                if may_start:
                    next_s = min(next_s, coming_s[head] + delay)
                if waiting < n:
                    next_s = min(next_s, coming_s[(head + waiting) % clients])
                now_s = next_s
                if now_s < finish_s[slot]:
                    continue
                finish_s[slot] = np.inf
                busy -= 1
                for i in range(sizes[slot]):
                    comes_s = now_s + think_s * turns[turned % len(turns)]
                    turned += 1
                    place = n  # behind all who come no later
                    while place > waiting and coming_s[(head + place - 1) % clients] > comes_s:
                        coming_s[(head + place) % clients] = coming_s[(head + place - 1) % clients]
                        place -= 1
                    coming_s[(head + place) % clients] = comes_s
                    n += 1
                    if skipped < SKIPPED_TURNS * clients:
                        skipped += 1
                        began_s = now_s
                    elif counted < answers:
                        latency_s[counted] = now_s - since_s[slot, i]
                        counted += 1
            result[k, w, 0] = 1e3 * np.mean(latency_s)
            result[k, w, 1] = 1e3 * np.percentile(latency_s, 95)
            result[k, w, 2] = answers / max(now_s - began_s, 1e-9)
    return result
