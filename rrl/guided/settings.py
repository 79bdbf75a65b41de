"""The settings of the default agent, grouped by the part that uses them.

Most were chosen on machines of the family with seeds below 1000, under all truths. What counts only where a
change costs users something was chosen on simulated targets that drift and hiccup as a stock Triton on 2
cores did. `scripts/bench triton-simulated` runs those, and its `--settings` shows what one setting brings.

`|ln|`, σ and κ speak of the natural logarithm of service times unless a comment says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rrl.load_levels import LoadLevels
from rrl.region.estimator import EstimatorSettings


@dataclass(frozen=True)
class GuidedSettings:
    """One flat set of values, so that `--settings NAME=VALUE` reaches each of them.

    A name that ends in `_costly` stands in for its namesake where a change costs users something.
    """

    # The first choice (`agent`).
    # It is made for a load of this share of the largest capacity of any configuration.
    first_share: float = 0.7
    # It is the most central configuration whose latency is within this factor of the lowest.
    first_within: float = 2.5

    # Exploration (`agent`).
    # κ: how many standard deviations shorter an exploring decision takes service times to be.
    optimism: float = 0.8
    # The most that κ standard deviations may amount to, as |ln|.
    largest_optimism: float = 0.35
    # Decisions after the start, or after a change of the machine, that explore. Later ones compare means.
    exploring: int = 28
    exploring_costly: int = 5
    # Decisions since the last change of the machine that look further than the others, ever more rarely.
    looks: tuple[int, ...] = (3, 6, 9, 13, 18, 25, 36, 52, 75, 110, 160, 230, 330, 480, 700, 1000)
    looks_costly: tuple[int, ...] = (18, 36, 72, 144, 288, 576, 1152)
    # `optimism` and `largest_optimism` of a decision that looks further.
    look_optimism: float = 1.5
    look_largest_optimism: float = 0.8

    # Stability (`agent`).
    # A configuration counts as stable up to a load of this share of its capacity.
    stable_share: float = 0.95
    # It counts as safe if it stays stable with service times so many standard deviations longer.
    pessimism: float = 0.5
    # `pessimism` of a decision that looks further.
    look_pessimism: float = 1.0
    # So many configurations stay to choose from, even if fewer are safe.
    least_safe: int = 40
    # In a small space this share of all configurations is enough instead.
    least_safe_share: float = 0.1
    # κ grows by this with each decision in a row without a stable configuration, up to 1.
    overload_pace: float = 0.5
    # The same once exploration is over, as most such loads are soon gone.
    overload_pace_later: float = 0.05

    # How many configurations are compared, and how well (`agent`, `predicted_costs`).
    # Configurations whose uncertainty is asked for while exploring, the cheapest by screening.
    screened: int = 400
    # The same once exploration is over.
    screened_later: int = 120
    # Configurations that an exploring decision simulates.
    simulated: int = 40
    # Configurations that a later decision simulates, each with shorter and with longer service times.
    simulated_twice: int = 24

    # Changes that cost users something (`predicted_costs`, `change_costs`, `agent`).
    # The share of the cost that a change must save for every process that it starts, while exploring.
    reluctance: float = 0.08
    # The same once exploration is over.
    reluctance_later: float = 0.015
    # The largest cost, as a multiple, that still passes. It bounds three comparisons:
    # what is tried, to what is in force; a relief in place, to the best of all while the queue grows; and the
    # first interval of new processes, to what was expected, if nothing is to be learned from it.
    gamble: float = 1.6
    # Latency is divided by this power of the capacity over the load, so that a rising load needs no change.
    headroom: float = 0.1
    # The most times the load that capacity counts for in this.
    headroom_up_to: float = 2.5
    # Latency is multiplied by this power of its p95 over its cost, so that of two the shorter tail wins.
    tail: float = 0.2
    # Seconds over which the queue that grows during a change is spread.
    spread_s: float = 100.0
    # Seconds that one process takes to start, measured of a stock Triton on 2 cores.
    process_start_s: float = 0.9
    # Batches take so many times as long beside a start, measured there too.
    beside_a_start: float = 1.8

    # Changes of the machine (`machine_watch`, `predicted_costs`).
    # |ln| by which service times must move to be a change of the machine.
    change: float = 0.06
    # Standard deviations by which they must move, too.
    change_sd: float = 4.0
    # Multiples of the median of all moves so far by which they must move, too.
    change_commonly: float = 3.0
    change_commonly_costly: float = 5.0
    # Intervals under what is in force, after its first, before it tells of the machine, if changes cost.
    steady: int = 1
    # The share of a move that is the machine's, of all configurations alike, if changes cost something.
    common_share: float = 0.75
    # σ of all service times during the time in which a change that costs something must pay.
    machine_sd: float = 0.15

    # The residual (`region_residual`).
    # δ: the radius of a region, in steps of the knobs.
    radius: float = 2.0
    # σ of ρ: what the queue model gets wrong, as |ln| of a latency.
    residual_sd: float = 0.03
    # The queue model is less right of a server that is not ours.
    residual_sd_costly: float = 0.15
    # Intervals after which an observation counts for 1/e, if changes cost something.
    residual_memory: float = 30.0
    # The share of ρ where it was observed that is expected of all configurations, if changes cost something.
    residual_common: float = 0.75
    # Intervals between two trainings of the network.
    training_every: int = 4
    # How loads are divided into levels: each has a residual of its own.
    load_levels: LoadLevels = field(default_factory=LoadLevels)
    # The network and its training.
    estimator: EstimatorSettings = field(default_factory=lambda: EstimatorSettings(max_steps=8))

    def __post_init__(self) -> None:
        if not 0 < self.stable_share <= 1:
            raise ValueError(f"stable_share must be in (0, 1], got {self.stable_share}")
        if not (0 <= self.reluctance < 1 and 0 <= self.reluctance_later < 1):
            raise ValueError(
                f"reluctance must be in [0, 1), got {self.reluctance} and {self.reluctance_later}"
            )
        if not self.gamble >= 1:
            raise ValueError(f"gamble must be at least 1, got {self.gamble}")
        counts = (
            "least_safe",
            "screened",
            "screened_later",
            "simulated",
            "simulated_twice",
            "training_every",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        positive = ("residual_sd", "residual_sd_costly", "residual_memory", "least_safe_share", "spread_s")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("common_share", "residual_common"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("first_within", "beside_a_start", "headroom_up_to"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("process_start_s", "steady", "headroom", "tail", "machine_sd"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


GUIDED = GuidedSettings()
