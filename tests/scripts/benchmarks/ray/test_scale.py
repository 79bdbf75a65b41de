"""The study of scale: how near to the best a run is."""

from __future__ import annotations

import numpy as np
import pytest

from envs.scenarios.cluster import ClusterNature
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import scenarios
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.benchmarks.ray.scale import RATES_PER_S, TRUTH, ScaleJob, ScaleLine, line_of

SPACE = ConfigurationSpace.parse("instances=1:3,intra_op_threads=1,2,4")


@pytest.fixture(scope="module")
def job() -> ScaleJob:
    (scenario,) = scenarios("family:0", TRUTH)
    expected = ExpectedCosts(scenario, SPACE, MeanLatency())
    log_costs = np.log([expected.costs(float(rate)) for rate in RATES_PER_S])
    return ScaleJob("random", scenario, SPACE, ClusterNature(nodes=4), 31, log_costs)


def test_costs_between_the_simulated_rates_lie_between_theirs(job: ScaleJob) -> None:
    costs = np.exp(job.log_costs)
    np.testing.assert_allclose(job.costs(float(RATES_PER_S[3])), costs[3])
    between = job.costs(float(np.sqrt(RATES_PER_S[3] * RATES_PER_S[4])))
    np.testing.assert_allclose(between, np.sqrt(costs[3] * costs[4]))
    np.testing.assert_allclose(job.costs(1e6), costs[-1])


def test_a_run_is_judged_by_what_its_choices_cost_at_the_time(job: ScaleJob) -> None:
    run = job()
    assert run.chosen.shape == (31,)
    assert (run.chosen >= run.best).all()
    assert len(set(run.best)) > 1  # the cluster drifts
    assert (run.decide_ms >= run.merge_ms).all()
    line = ScaleLine.of([run, run])
    assert line.regret == pytest.approx((run.chosen / run.best - 1).sum())
    assert line_of("random", 4, 0.05, line).startswith("random       4       5%")
