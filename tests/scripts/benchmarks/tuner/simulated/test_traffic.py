"""`scripts/bench traffic-simulated`: its neighbour slows what it should, and runs are judged by what came."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from envs.scenarios.small_machines import random_machine
from rrl.queueing.simulator import Simulation
from scripts.benchmarks.tuner.real_traffic.report import GuardActions
from scripts.benchmarks.tuner.simulated import traffic
from scripts.benchmarks.tuner.simulated.traffic import (
    OF_THUMB,
    BesideNeighbour,
    NeighbourSpell,
    SimulatedTraffic,
    TrafficOutcome,
    beside,
    episode,
    line_of,
    result,
    spells_of,
)
from scripts.benchmarks.tuner.simulated.tuned_run import tuned

MACHINE, _ = random_machine(3)
ONE_THREAD = {"instances": 1, "intra_op_threads": 1, "max_batch_size": 8}


def test_a_neighbour_slows_only_what_wants_more_than_the_cores_that_are_left() -> None:
    slowed = beside(MACHINE, 0.5)
    np.testing.assert_array_equal(slowed.table(ONE_THREAD), MACHINE.table(ONE_THREAD))
    ratio = slowed.table(OF_THUMB) / MACHINE.table(OF_THUMB)
    np.testing.assert_allclose(ratio[0], 1.0)  # one busy thread and a half: less than two cores
    np.testing.assert_allclose(ratio[1], 1.25)  # two and a half threads on two cores


def test_a_server_is_slow_in_the_spells_of_its_neighbour_and_in_no_others() -> None:
    server = BesideNeighbour(
        MACHINE, [NeighbourSpell(10.0, 0.0), NeighbourSpell(20.0, 1.0), NeighbourSpell(30.0, 0.0)], np.ones(1)
    )
    alone = Simulation(MACHINE)
    moments_s = np.repeat(np.arange(0.5, 30.0), 2)  # two at once, so that both instances are busy
    configuration = OF_THUMB | {"max_batch_size": 1}
    found, usual = (each.run(moments_s, None, configuration, 40.0) for each in (server, alone))
    longer = (found.finish_s - found.start_s) / (usual.finish_s - usual.start_s)
    slow = (found.start_s > 10.0) & (found.start_s < 20.0)
    np.testing.assert_allclose(longer[~slow], 1.0)
    assert longer[slow].max() == pytest.approx(1.5)


def test_bursts_do_not_make_it_go_between_near_ties_for_ever() -> None:
    """Two configurations cost about the same here."""
    run = episode(SimulatedTraffic("on-off", False, 0.4), "guided", 16, (), 1520)
    assert run.left <= 1.1
    assert run.changes <= 5


def test_the_schedule_is_that_of_the_seed_and_long_enough() -> None:
    spells = spells_of(5, 300.0)
    assert spells == spells_of(5, 300.0) != spells_of(6, 300.0)
    assert spells[-1].end_s > 300.0
    assert all((a.share == 0) != (b.share == 0) for a, b in pairwise(spells))


def test_a_run_is_the_same_again_and_costs_less_than_its_overloaded_start() -> None:
    cell = SimulatedTraffic("gaps:5", False, 0.4)
    outcome = episode(cell, "guided", 6, (), 1)
    assert outcome == episode(cell, "guided", 6, (), 1)
    assert 1.0 <= outcome.left < 1.5
    assert outcome.best_s <= outcome.latency_s < outcome.untouched_s


def test_a_neighbour_makes_every_configuration_slower() -> None:
    alone, beside_it = (episode(SimulatedTraffic("poisson", n, 0.4), "rule", 6, (), 1) for n in (False, True))
    assert beside_it.untouched_s > 1.05 * alone.untouched_s
    assert beside_it.latency_s > alone.latency_s


def test_a_line_counts_what_it_says() -> None:
    runs = [
        TrafficOutcome(1.05, 3, 20.0, 30.0, 10.0, GuardActions(rollbacks=2, aborted=1, worsened=0)),
        TrafficOutcome(1.4, 12, 80.0, 30.0, 10.0, GuardActions(rollbacks=1, aborted=0, worsened=1)),
    ]
    words = line_of(SimulatedTraffic("poisson", True, 0.5), "guided", runs).split()
    assert words == [
        "poisson",
        "beside",
        "0.50",
        "guided",
        "1/2",
        "1.225",
        "1.40",
        "8/12",
        "1/2",
        "1/4",
        "4.000",
    ]


def test_a_run_tells_what_its_guard_did_and_whether_that_made_it_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rolled_back(*arguments: Any) -> Any:
        kept, records = tuned(*arguments)
        last = replace(records[-1], rollback=False)
        dearer = replace(last, transition=replace(last.transition, cost=2 * last.cost))
        return kept, [replace(last, rollback=True), dearer]

    monkeypatch.setattr(traffic, "tuned", rolled_back)
    outcome = episode(SimulatedTraffic("poisson", False, 0.4), "guided", 2, (), 1)
    assert outcome.guard == GuardActions(rollbacks=1, aborted=0, worsened=1)


@pytest.mark.parametrize(("worsened", "holds"), [(1, True), (2, False)])
def test_the_guard_may_make_one_run_in_fifty_worse(worsened: int, holds: bool) -> None:
    good = TrafficOutcome(1.0, 2, 20.0, 30.0, 10.0, GuardActions(1, 0, 0))
    worse = good._replace(guard=GuardActions(1, 1, 1))
    told = result([good] * (50 - worsened) + [worse] * worsened)
    assert (told["runs"], told["worsened"], told["holds"]) == (50, worsened, holds)
