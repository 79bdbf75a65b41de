"""Point-based Q-learning: a table learned entry by entry, on which RRL (SC'19, section 4.1) is to improve.

It is region-based Q-learning with δ = 0, to which RRL then degenerates (Theorem 4.1). The region of a
configuration is itself, its estimated cost is the observed one (eq. 1), and the network has no say.

All else is as in `rrl.region.q_learning.TUNED`. So a comparison shows what regions and their estimator add.
The Q_0 of `PAPER` would make every untried configuration look better than any tried one.
"""

from __future__ import annotations

from rrl.region.estimator import EstimatorSettings
from rrl.region.q_learning import RRLSettings

POINT_BASED = RRLSettings(
    radius=0.0,
    discount=0.0,
    learning_rate_power=0.6,
    counted="observations",
    initial_q="nearest level",
    estimator=EstimatorSettings(hidden=(1,), minibatch=1, max_steps=1),  # never asked, so as small as can be
)
