"""What outsiders could import from the five oldest modules can be imported there still."""

from __future__ import annotations

from importlib import import_module

import pytest

OLD_NAMES = {
    "rrl.agent": """
        Agent Hindsight OBSERVATION_FIELDS OBSERVATION_LIMIT Task Transition arrival_rate_per_s
        number_in_force observe
    """,
    "rrl.space": """
        Configuration ConfigurationSpace Knob THREAD_KNOBS shown
    """,
    "rrl.measurement": """
        LatencySummary Measurement NOTHING_OBSERVED Progress ServiceTimes SoFar
    """,
    "rrl.objective": """
        FAILURE_WEIGHT LeastResources MeanLatency Objective StrictSLO in_unit make_objective
        slo_violated
    """,
    "rrl.journal": """
        Decision EMBEDDED Ending FILE_NAME FORMAT_VERSION Header Journal Kind NoJournal Record
        SIMULATION has_traffic read read_ending
    """,
}


@pytest.mark.parametrize("module", OLD_NAMES)
def test_an_old_name_stays_where_it_was(module: str) -> None:
    there = dir(import_module(module))
    assert [name for name in OLD_NAMES[module].split() if name not in there] == []
