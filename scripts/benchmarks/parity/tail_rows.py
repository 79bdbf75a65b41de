"""The rows of `parity-tail`: which server under which load and which faults, table by table.

| setting | here | in the paper (section 6.1) |
|---|---|---|
| GPU cluster | 12 + 12/k workers | 12 + 12/k p2.xlarge, 1-2 Gbit/s to each |
| CPU cluster | 24 + 24/k workers | 24 + 24/k c5.xlarge, 4-5 Gbit/s to each |
| service time | 50 ms, waited | ResNet-18's |
| load | share of what the deployed workers can do | queries a second |
| a shuffle | two random workers are slow | two random instances send each other 128-256 MB |
| how long | 1-4 s, 0.4-1 s | what that takes at these rates, one way and then back |

The paper's rates are 270/s for most GPU figures and 300/s for batches. Here 270 stands for 60 % load, so 300
for 67 %.

What a shuffle costs a query is not in the paper. `LAWS` are log-normal with a sigma of 1. Each cluster's
median is one of `CANDIDATE_MEDIANS_MS`: the one with which **Equal-Resources** has the paper's tail. ParM was
not looked at. The table `calibration` measures that, with faults and arrivals of its own seeds.

That tail follows from the paper's own figures. Say the gap of p99.9 to the median is R times smaller with
ParM, and its p99.9 lower by a share s, at one median. Then the p99.9 of Equal-Resources is
(R - 1) / (R (1 - s) - 1) medians. That is 2.61 to 2.67 on the GPUs and 2.94 to 3.05 on the CPUs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

BATCH_MS, ITEM_MS = 33.0, 17.0
CLUSTERS = {"gpu": 12, "cpu": 24}
"""Deployed workers."""
LOADS = (0.4, 0.5, 0.6, 0.7, 0.8)
HEADLINE_LOAD, BATCH_LOAD = 0.6, 0.667
HEADLINE_REQUESTS, OTHER_REQUESTS = 100_000, 30_000

CANDIDATE_MEDIANS_MS = (4.5, 5.5, 7.0, 9.0, 11.0)
PAPER_TAILS = {"gpu": (2.61, 2.67), "cpu": (2.94, 3.05)}
"""Of Equal-Resources: p99.9 in medians."""
CALIBRATION_SEED = 100
"""Of its first run; runs of other tables begin at 0."""
LAWS = {"gpu": {"median": 5.5, "sigma": 1.0}, "cpu": {"median": 9.0, "sigma": 1.0}}
SHUFFLE_S = {"gpu": [1.0, 4.0], "cpu": [0.4, 1.0]}

BACKUP_SPEED_UPS = {"gpu": 1.15, "cpu": 1.4}  # of MobileNet-V2 (section 6.2.6)
TENANT_QUERIES_PER_S = 8.4  # on one ninth of the instances: 4.7 % of what the cluster can serve
FULL_BATCHES_US = 200_000  # longer than it takes until any batch here is full

PARITY, HEDGING, EQUAL, BACKUP = "parity", "hedging", "equal-resources", "approximate-backup"
AS_IN_THE_PAPER = ("--late-percentile", 0, "--overflow", 0)
HEDGED = ("--late-percentile", 80)
"""Of the percentiles that the table `mode` has hedging with, 50 gains as much, and 95 less."""

Fault = dict[str, Any]


@dataclass(frozen=True)
class ServerAndLoad:
    """One server, its load and what slows its workers. Rows of equal settings share their runs."""

    label: str
    mode: str
    cluster: str = "gpu"
    k: int = 2
    load: float = HEADLINE_LOAD  # of the capacity of the deployed workers
    max_batch_size: int = 1
    backup_speed_up: float = 1.0
    flags: tuple[object, ...] = ()
    faults: tuple[Fault, ...] = ()
    name: str = ""
    """What the mode is called, where its name does not say it."""

    @property
    def workers(self) -> int:
        return CLUSTERS[self.cluster]

    @property
    def rate_per_s(self) -> float:
        """Requests a second; batches raise what the workers can do, as they share `BATCH_MS`."""
        batch_ms = BATCH_MS + self.max_batch_size * ITEM_MS
        return self.load * 1e3 * self.workers * self.max_batch_size / batch_ms

    @property
    def requests(self) -> int:
        """Of a run at size."""
        is_headline = any(self.settings() == row.settings() for row in headline())
        return HEADLINE_REQUESTS if is_headline else OTHER_REQUESTS

    @property
    def is_parm(self) -> bool:
        """True of ParM as this server has it by default."""
        return self.mode == PARITY and not {"--late-percentile", "--overflow"} & set(self.flags)

    @property
    def shown_mode(self) -> str:
        return self.name or self.mode

    def settings(self) -> dict[str, Any]:
        """All that tells its runs from those of other rows."""
        return {name: value for name, value in asdict(self).items() if name not in ("label", "name")}


def shuffles(
    cluster: str, count: int = 4, delay_ms: object = None, for_s: list[float] | None = None
) -> tuple[Fault, ...]:
    law, for_s = delay_ms or LAWS[cluster], for_s or SHUFFLE_S[cluster]
    return ({"kind": "slow", "always": count, "workers": 2, "for_s": for_s, "delay_ms": law},)


def tenants(cluster: str) -> tuple[Fault, ...]:
    """Light inference beside one ninth of the instances with k = 2."""
    instances = 3 * CLUSTERS[cluster] // 2
    return (
        {
            "kind": "tenant", "at_s": [0], "for_s": 86_000, "workers": instances // 9,
            "queries_per_s": TENANT_QUERIES_PER_S, "query_ms": BATCH_MS + ITEM_MS,
        },
    )  # fmt: skip


def three_modes(label: str, **settings: Any) -> list[ServerAndLoad]:
    """Equal-Resources, ParM, and hedging of the same resources."""
    settings = {"faults": shuffles(settings.get("cluster", "gpu"))} | settings
    flags = settings.pop("flags", ())
    return [
        ServerAndLoad(label, EQUAL, flags=flags, **settings),
        ServerAndLoad(label, PARITY, flags=flags, **settings),
        ServerAndLoad(label, HEDGING, flags=(*HEDGED, *flags), **settings),
    ]


def headline() -> list[ServerAndLoad]:
    return [row for cluster in CLUSTERS for row in three_modes(cluster, cluster=cluster)]


def rates() -> list[ServerAndLoad]:
    rows = []
    for cluster in CLUSTERS:
        for load in LOADS:
            label, faults = f"{cluster}, {load:.0%}", shuffles(cluster)
            rows += three_modes(label, cluster=cluster, load=load)
            rows.append(
                ServerAndLoad(label, PARITY, cluster, 2, load, flags=AS_IN_THE_PAPER, faults=faults,
                              name="parity, as in the paper")
            )  # fmt: skip
    return rows


def ks() -> list[ServerAndLoad]:
    """Equal-Resources has the 18 workers of k = 2 (Fig. 11)."""
    faults = shuffles("gpu")
    return [
        ServerAndLoad("k = 2", EQUAL, faults=faults),
        *(ServerAndLoad(f"k = {k}", PARITY, k=k, faults=faults) for k in (2, 3, 4)),
        *(ServerAndLoad(f"k = {k}", HEDGING, k=k, faults=faults, flags=HEDGED) for k in (2, 3, 4)),
    ]


def batches() -> list[ServerAndLoad]:
    """All batches are full, as in the paper's system; and those of whoever comes within 2 ms."""
    rows = []
    for size in (1, 2, 4):
        full = ("--max-queue-delay-us", FULL_BATCHES_US if size > 1 else 0)
        rows += three_modes(f"full batches of {size}", load=BATCH_LOAD, max_batch_size=size, flags=full)
    for size in (2, 4):
        partial = ("--max-queue-delay-us", 2000)
        rows += three_modes(f"batches of up to {size}", load=BATCH_LOAD, max_batch_size=size, flags=partial)
    return rows


def imbalances() -> list[ServerAndLoad]:
    counts = (2, 3, 4, 5)
    return [row for n in counts for row in three_modes(f"{n} shuffles", faults=shuffles("gpu", n))]


def shuffle_lengths() -> list[ServerAndLoad]:
    """The smaller cluster with the shuffles' lengths of both."""
    return [
        row
        for low, high in SHUFFLE_S.values()
        for row in three_modes(f"{low:g} to {high:g} s", faults=shuffles("gpu", for_s=[low, high]))
    ]


def lightly_shared() -> list[ServerAndLoad]:
    return [
        row
        for load in LOADS[:4]
        for row in three_modes(f"tenants, {load:.0%}", load=load, faults=tenants("gpu"))
    ]


def backups() -> list[ServerAndLoad]:
    """ParM beside approximate backups that are as much faster as the paper's on each kind of hardware.

    Idle workers help each other out in both, and as in the paper in neither.
    """
    rows = []
    for load, as_in_the_paper in product(LOADS, (False, True)):
        flags, suffix = (AS_IN_THE_PAPER, ", as in the paper") if as_in_the_paper else ((), "")
        common: dict[str, Any] = {"load": load, "flags": flags, "faults": shuffles("gpu")}
        rows.append(ServerAndLoad(f"{load:.0%}", PARITY, name=f"{PARITY}{suffix}", **common))
        for hardware, speed_up in BACKUP_SPEED_UPS.items():
            name = f"backup, {speed_up:g}x as fast ({hardware}){suffix}"
            rows.append(ServerAndLoad(f"{load:.0%}", BACKUP, backup_speed_up=speed_up, name=name, **common))
    return rows


def delays() -> list[ServerAndLoad]:
    kinds: dict[str, tuple[Fault, ...]] = {
        "uniform 0-75": shuffles("gpu", delay_ms=[0, 75]),
        "exponential 10": shuffles("gpu", delay_ms={"mean": 10.0}),
        "log-normal 0.5": shuffles("gpu", delay_ms={"median": 12.0, "sigma": 0.5}),
        "log-normal 1.5": shuffles("gpu", delay_ms={"median": 1.0, "sigma": 1.5}),
        "stalls": ({"kind": "stall", "mean_gap_s": 1.0, "for_s": [0.1, 0.3]},),
        "none": (),
    }
    return [row for label, faults in kinds.items() for row in three_modes(label, faults=faults)]


def modes() -> list[ServerAndLoad]:
    """Modes of the same cost, except for the first and the last."""
    given: list[tuple[str, str, tuple[object, ...]]] = [
        ("no redundancy", "none", ()),
        ("Equal-Resources", EQUAL, ()),
        ("ParM, paper's", PARITY, AS_IN_THE_PAPER),
        ("ParM, eager", PARITY, ("--late-percentile", 0)),
        ("ParM, late: p50", PARITY, ("--late-percentile", 50)),
        ("ParM, late: p95", PARITY, ()),
        ("ParM, late: p95, apart", PARITY, ("--overflow", 0)),
        ("hedging, p95", HEDGING, ()),
        ("hedging, p80", HEDGING, ("--late-percentile", 80)),
        ("hedging, p50", HEDGING, ("--late-percentile", 50)),
        ("replication", "replication", ()),
        ("replication, 24", "replication", ("--redundant-instances", CLUSTERS["gpu"])),
    ]
    faults = shuffles("gpu")
    return [ServerAndLoad(label, mode, flags=flags, faults=faults) for label, mode, flags in given]


def calibration() -> list[ServerAndLoad]:
    return [
        ServerAndLoad(
            f"{cluster}, median {median_ms:g} ms", EQUAL, cluster,
            faults=shuffles(cluster, delay_ms={"median": median_ms, "sigma": 1.0}),
        )
        for cluster in CLUSTERS
        for median_ms in CANDIDATE_MEDIANS_MS
    ]  # fmt: skip


TABLES = {
    "headline": (headline, "k = 2 at 60% load (Fig. 10)"),
    "rate": (rates, "Load, k = 2 (Fig. 10)"),
    "k": (ks, "k at 60% load (Fig. 11)"),
    "batch": (batches, "Batches at 67% load (section 6.2.3)"),
    "imbalance": (imbalances, "Shuffles at 60% load (Fig. 12)"),
    "length": (shuffle_lengths, "How long a shuffle lasts, at 60% load (not in the paper)"),
    "tenants": (lightly_shared, "Light tenants (Fig. 13)"),
    "backup": (backups, "Approximate backups (Fig. 14)"),
    "mode": (modes, "Modes at 60% load"),
    "delay": (delays, "Kinds of slow-down at 60% load (not in the paper)"),
    "calibration": (calibration, "Equal-Resources by the median of the law of slow-downs, at 60% load"),
}
