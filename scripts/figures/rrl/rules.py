"""The rules by which RRL's Figs. 12 to 15 are judged. They were settled before the runs.

| symbol | here | meaning |
|---|---|---|
| e_t / o_t | ratio | expected latency of the configuration chosen, by the lowest possible at that load |
| m_t | `running_median` | the median of the ratio over the decisions t-10 .. t+10 |
| p | plateau | the median of the ratio over the last tenth of the run |
| t_own | `settled_after` | the first decision from which on m_t stays within 25 % of p |
| t_near | `near_oracle_after` | the first decision from which on m_t is at most so many times 1 |

The paper's curves show plateaus of their own, of which only RRL's is said to be near the optimum. So t_own is
its "converged". A run that settles only in its last tenth has not converged.

| statement of the paper | yes | partly |
|---|---|---|
| RRL converges in less than 200 minutes | median t_own below a tenth of the run | it converges |
| ... to a near-optimal performance | median t_near (25 %) below a tenth of the run | within the run |
| DeepRM converges around 1,700 minutes | median t_own from half of the run on | it never does |
| CAPES does not converge | median t_own is never | no |
| RRL is 8 times faster | its median t_own at most an eighth of the faster peer's | it is lower |
| a reduction | surely below zero, at least three quarters as large | surely below zero |

A verdict needs at least `FEWEST_RUNS` runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from baselines.comparison.summary import LONG_MEDIAN_REACH, decisions_until_within, running_median
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_change, bootstrap_median
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES
from scripts.figures.rrl.contenders import Contender

END = 0.1  # of the run
NEAR_OWN = 0.25
NEAR_ORACLE = 1.25
SOON = 0.1  # of the run
LATE = 0.5  # of the run
TIMES_FASTER = 8.0
AS_LARGE = 0.75  # of the paper's reduction
FEWEST_RUNS = 3


def settled_after(ratios: np.ndarray) -> np.ndarray:
    """(runs,) t_own of (runs, decisions) ratios; infinity for never."""
    return np.array([_settled_after(ratio) for ratio in ratios])


def _settled_after(ratio: np.ndarray) -> float:
    last = max(1, round(END * len(ratio)))
    plateau = float(np.median(ratio[-last:]))
    outside = np.flatnonzero(np.abs(running_median(ratio, LONG_MEDIAN_REACH) / plateau - 1.0) > NEAR_OWN)
    settled = float(outside[-1] + 1) if len(outside) else 0.0
    return settled if settled <= len(ratio) - last else np.inf


def near_oracle_after(ratios: np.ndarray, within: float = NEAR_ORACLE) -> np.ndarray:
    """(runs,) t_near of (runs, decisions) ratios; infinity for never."""
    return np.array([decisions_until_within(ratio, LONG_MEDIAN_REACH, within) for ratio in ratios])


def after_text(reached: np.ndarray, decisions: int) -> str:
    """E.g. `23 [9, 61] (9 of 10 runs)`; without the interval where there are too few runs for one."""
    count = f"{int(np.isfinite(reached).sum())} of {len(reached)} run{'s' * (len(reached) > 1)}"
    median = bootstrap_median(reached)
    if not np.isfinite(median.estimate):
        return f"not within {decisions} ({count})"
    if len(reached) < FEWEST_RUNS:
        return f"{median.estimate:.0f} ({count})"
    high = f"{median.high:.0f}" if np.isfinite(median.high) else f"over {decisions}"
    return f"{median.estimate:.0f} [{median.low:.0f}, {high}] ({count})"


def judged(runs: int, verdict: str) -> str:
    """The verdict, where there are enough runs for one."""
    return verdict if runs >= FEWEST_RUNS else NO_CLAIM


def verdict_of_soon(reached: np.ndarray, decisions: int) -> str:
    median = bootstrap_median(reached).estimate
    verdict = REPRODUCES if median < SOON * decisions else PARTLY if np.isfinite(median) else FAILS
    return judged(len(reached), verdict)


def verdict_of_late(reached: np.ndarray, decisions: int) -> str:
    median = bootstrap_median(reached).estimate
    verdict = PARTLY if not np.isfinite(median) else REPRODUCES if median >= LATE * decisions else FAILS
    return judged(len(reached), verdict)


def verdict_of_never(reached: np.ndarray) -> str:
    finite = np.isfinite(bootstrap_median(reached).estimate)
    return judged(len(reached), FAILS if finite else REPRODUCES)


def times_faster(ours: np.ndarray, theirs: np.ndarray, decisions: int) -> tuple[str, str]:
    """How many times sooner the median run of `ours` settles than that of `theirs`, and the verdict."""
    our, their = (bootstrap_median(reached).estimate for reached in (ours, theirs))
    if not np.isfinite(our):
        return "RRL does not settle in the median run", judged(len(ours), FAILS)
    factor = min(their, decisions) / max(our, 1.0)
    text = f"{'' if np.isfinite(their) else 'at least '}{factor:.1f}"
    verdict = REPRODUCES if factor >= TIMES_FASTER else PARTLY if factor > 1 else FAILS
    return text, judged(len(ours), verdict)


def percent_change(ours: np.ndarray, theirs: np.ndarray) -> BootstrapInterval:
    """The change of the mean of (runs,) values in percent, for pairs of runs on the same machines."""
    return BootstrapInterval(*(100 * value for value in bootstrap_change(ours, theirs)))


def percent_changes(ours: np.ndarray, theirs: np.ndarray) -> tuple[BootstrapInterval, BootstrapInterval]:
    """The change of the mean of (runs, decisions) values, of whole runs and of their second half."""
    half = ours.shape[1] // 2
    return (
        percent_change(ours.mean(axis=1), theirs.mean(axis=1)),
        percent_change(ours[:, half:].mean(axis=1), theirs[:, half:].mean(axis=1)),
    )


def percent_text(change: BootstrapInterval, runs: int) -> str:
    """E.g. `-82 % [-90, -70]`; without the interval where there are too few runs for one."""
    return change.text("+.0f", " %") if runs >= FEWEST_RUNS else f"{change.estimate:+.0f} %"


def two_changes_text(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    """E.g. `-96 % (-95 %)`: by how much the mean of each of two values differs."""
    first, second = (
        f"{100 * (our.mean() / their.mean() - 1):+.0f} %" if their.any() else "–"
        for our, their in zip(ours, theirs, strict=True)
    )
    return f"{first} ({second})"


def default_beside_each(values: Mapping[str, Sequence[np.ndarray]], looks: Mapping[str, Contender]) -> str:
    """Two values of each contender: by how much those of our default agent differ, in turn."""
    return ", ".join(
        f"{looks[name].label} {two_changes_text(values['guided'], theirs)}"
        for name, theirs in values.items()
        if name != "guided"
    )


def verdict_of_reduction(paper_percent: float, change: BootstrapInterval) -> str:
    """Reproduces: surely lower, by at least three quarters as much. Partly: surely lower, but by less."""
    if change.high >= 0:
        return FAILS
    return REPRODUCES if change.estimate <= AS_LARGE * paper_percent else PARTLY
