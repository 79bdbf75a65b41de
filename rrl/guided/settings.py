"""The settings of the default agent.

They were chosen on machines with seeds below 1000. `--settings NAME=VALUE` of `scripts/bench reach` and of
`scripts/bench triton-simulated` shows what one brings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GuidedSettings:
    """One flat set of values, so that `--settings NAME=VALUE` reaches each of them."""

    # What expected improvement is multiplied by: the decisions over which what is found must pay.
    horizon: float = 14.0
    # The rule of thumb is tried, once, within so many intervals, where it may well be better.
    rule_of_thumb_within: int = 4
    # The most promising configurations, which are replayed.
    contenders: int = 16
    # What a change costs users, as a share of what an interval costs them.
    change_share: float = 0.1
    # The same of a live server, where a change takes a while to settle.
    settling_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("horizon", "contenders"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rule_of_thumb_within", "change_share", "settling_share"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


GUIDED = GuidedSettings()
