"""Which configurations are worth comparing with the one in force."""

from __future__ import annotations

import numpy as np

from rrl.belief.belief import Belief


def without_vain_delays(belief: Belief, in_force: int, numbers: np.ndarray) -> np.ndarray:
    """Those numbers without changes of the delay that bring nothing.

    A batch of one is full at once, whatever the delay.
    """
    batch, delay_s = belief.replay.max_batch_size, belief.replay.delay_s
    return numbers[(batch[numbers] > 1) | (delay_s[numbers] == delay_s[in_force])]
