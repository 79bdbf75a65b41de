"""What brings nothing is not compared."""

from __future__ import annotations

import numpy as np

from rrl.belief.belief import Belief
from rrl.guided.candidates import without_vain_delays
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace


def test_a_delay_is_not_changed_where_batches_are_of_one() -> None:
    space = ConfigurationSpace.of(instances=[1], max_batch_size=[1, 4], max_queue_delay_us=[0, 1000])
    belief = Belief(space, MeanLatency(), cores=4)
    kept = without_vain_delays(belief, 0, np.arange(len(space))).tolist()
    vain = space.number({"instances": 1, "max_batch_size": 1, "max_queue_delay_us": 1000})
    assert kept == [number for number in range(len(space)) if number != vain]
