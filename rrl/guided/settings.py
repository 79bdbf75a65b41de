"""The settings of `agent` and its parts.

Those are `change_costs`, `machine_watch`, `predicted_costs` and `region_residual`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rrl.load_levels import LoadLevels
from rrl.region.estimator import EstimatorSettings


@dataclass(frozen=True)
class GuidedSettings:
    """Chosen on machines of the family with seeds below 1000, under all truths.

    What is for costly changes: on simulated targets that drift and hiccup as a stock Triton on 2 cores did
    (`scripts/bench triton-simulated`, whose `--settings` shows what one brings).
    """

    first_share: float = 0.7  # of the largest capacity: the load that the first choice is made for ...
    first_within: float = 2.5  # ... the most central of those within so many times the lowest latency
    optimism: float = 0.8  # κ during the first `exploring` decisions; later costs are means instead
    exploring: int = 28
    exploring_costly: int = 5  # ... or so many where a change costs users something
    largest_optimism: float = 0.35  # of ln S
    # Decisions since the last change that look further; ever more rarely.
    looks: tuple[int, ...] = (3, 6, 9, 13, 18, 25, 36, 52, 75, 110, 160, 230, 330, 480, 700, 1000)
    looks_costly: tuple[int, ...] = (18, 36, 72, 144, 288, 576, 1152)  # where a change costs users something
    look_optimism: float = 1.5  # κ of these ...
    look_largest_optimism: float = 0.8
    look_pessimism: float = 1.0  # ... and how many standard deviations must leave them stable
    pessimism: float = 0.5
    least_safe: int = 40  # configurations that stay to choose from, however few are that safe ...
    least_safe_share: float = 0.1  # ... in small spaces this share of all
    stable_share: float = 0.95  # of its capacity, up to which a configuration counts as stable
    overload_pace: float = 0.5  # by which κ grows with each overloaded decision while exploring, and later
    overload_pace_later: float = 0.05
    # Where a change costs users something: so much less it must promise for every process that it starts,
    reluctance: float = 0.08  # while exploring, and later
    reluctance_later: float = 0.015
    # ... and nothing is tried that is expected to cost over so many times the present, nor is anything loaded
    # anew, while the queue grows, where something in place costs at most so many times the best, nor is
    # anything learned of what was just started and costs at most so many times what was expected.
    gamble: float = 1.6
    # Latency of what bears more counts for less, by this power of how many times the load it bears, ...
    headroom: float = 0.1
    headroom_up_to: float = 2.5  # ... up to so many
    tail: float = 0.2  # that of what has a long tail for more, by this power of its p95 over its cost
    # The queue that grows while it starts them counts as spread over so long.
    spread_s: float = 100.0
    process_start_s: float = 0.9  # measured of a stock Triton on 2 cores, for each; meanwhile batches ...
    beside_a_start: float = 1.8  # ... take so many times as long
    screened: int = 400  # configurations whose uncertainty is asked for, and once much is known
    screened_later: int = 120
    simulated: int = 40  # configurations, and where each is simulated twice
    simulated_twice: int = 24
    change: float = 0.06  # |ln| of service times now over before that may be a change ...
    change_sd: float = 4.0  # ... if it is also so many standard deviations
    change_commonly: float = 3.0  # ... and so many times the median of what was seen so far,
    change_commonly_costly: float = 5.0  # or so many where a change costs users something
    # Where a change costs users something: intervals of what is in force, after its first, before it tells of
    steady: int = 1  # the machine ...
    common_share: float = 0.75  # ... and the part of what its times move by that all share, noise apart
    machine_sd: float = 0.15  # σ of ln of all service times while such a change must pay
    radius: float = 2.0  # δ of the region
    residual_sd: float = 0.03  # σ of ρ, and where a change costs users something:
    residual_sd_costly: float = 0.15  # the queue model is less right of a server that is not ours
    # Intervals after which what was seen of a configuration counts for 1/e, where changes cost something.
    residual_memory: float = 30.0
    residual_common: float = 0.75  # there, the part of ρ where it was observed that is expected of all
    training_every: int = 4  # intervals
    load_levels: LoadLevels = field(default_factory=LoadLevels)
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
