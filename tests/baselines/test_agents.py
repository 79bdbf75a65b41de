"""The agents as data: every entry is complete, and what is made of the entries agrees with them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import baselines
from baselines import (
    AGENTS,
    NEED_HINDSIGHT,
    NEED_MACHINE,
    agents_for_tuning,
    make_agent,
    markdown_table,
    needs_of,
    typical_decide_ms,
)
from baselines.agents import AgentEntry
from rrl.agent import Agent, Task, Transition
from rrl.agent_names import FORMER_NAMES, present_name
from rrl.testing import full_task


def test_public_names_are_what_all_lists() -> None:
    public = {name for name in vars(baselines) if not name.startswith("_")}
    modules = {name for name in public if f"baselines.{name}" in sys.modules}
    assert public - modules - {"annotations"} == set(baselines.__all__)
    assert sorted(baselines.__all__) == sorted(set(baselines.__all__))


@pytest.mark.parametrize("name", AGENTS)
def test_an_entry_makes_the_agent_that_it_names(name: str) -> None:
    entry = AGENTS[name]
    agent = make_agent(name, full_task())
    assert isinstance(agent, Agent)
    assert type(agent).__name__ == entry.agent.partition(":")[2]
    assert type(agent).__module__ == entry.agent.partition(":")[0]
    if entry.settings is not None:
        assert agent.settings == entry.load_settings()  # type: ignore[attr-defined]
    agent.close()


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_an_agents_former_name_makes_the_present_agent(former: str) -> None:
    assert former not in AGENTS
    with pytest.warns(DeprecationWarning, match=f"'{former}' is taken for '{present_name(former)}'"):
        agent = make_agent(former, full_task())
    assert type(agent) is type(make_agent(present_name(former), full_task()))


@pytest.mark.parametrize(
    ("name", "module", "library"),
    [("optuna-tpe", "optuna", "optuna"), ("gp-bandit", "sklearn", "scikit-learn")],
)
def test_an_agent_without_its_library_is_refused_in_a_sentence(
    name: str, module: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, agent = AGENTS[name].agent.partition(":")
    for loaded in [each for each in sys.modules if each == where or each.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ValueError, match=rf"^the agent {agent} needs {library}: pip install {library} \(.*{module}.*\)$"
    ) as told:
        make_agent(name, full_task())
    assert isinstance(told.value, ImportError)  # by which a node of a cluster knows that it lacks a package


@pytest.mark.parametrize("name", AGENTS)
def test_an_entry_travels_to_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(AGENTS[name])) == AGENTS[name]


def test_needs_and_times_follow_from_the_entries() -> None:
    assert NEED_HINDSIGHT == ("best-fixed", "oracle")
    assert NEED_MACHINE == ("serf",)
    assert needs_of("somebody's own") == ()
    assert typical_decide_ms("somebody's own") > typical_decide_ms("guided") > typical_decide_ms("random")


def test_the_sentence_for_tuning_names_every_agent_that_a_live_run_can_have() -> None:
    words = agents_for_tuning().replace(" (needs --machine)", "").split(", ")
    assert words == [name for name in AGENTS if name not in NEED_HINDSIGHT]
    assert "serf (needs --machine)" in agents_for_tuning()


def test_the_table_has_a_row_for_every_agent() -> None:
    header, rule, *rows = markdown_table().splitlines()
    assert header == "| agent | method | after | needs |"
    assert rule == "|---|---|---|---|"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [first for first, *_ in cells] == [f"`{name}`" for name in AGENTS]
    assert all(len(row) == 4 and row[1] for row in cells)
    needs = {row[0].strip("`"): row[3] for row in cells if row[3]}
    assert needs == {"serf": "a machine file", "best-fixed": "a simulation", "oracle": "a simulation"}


def test_naming_the_agents_imports_none_of_them() -> None:
    code = (
        "import sys, baselines; baselines.markdown_table(); print([m for m in ('torch', 'optuna', 'sklearn', "
        "'stable_baselines3', 'numba') if m in sys.modules])"
    )
    project = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


class TwoMethods:
    """What could be an agent, and says so nowhere."""

    def act(self, observation: np.ndarray) -> np.ndarray:
        return np.zeros(1, dtype=np.int64)

    def update(self, transition: Transition) -> None:
        pass


class LearnsNothing(Agent):
    """Lacks a method."""

    def act(self, observation: np.ndarray) -> np.ndarray:
        return np.zeros(1, dtype=np.int64)


class AsksForMore(LearnsNothing):
    """Asks for what no agent is given."""

    def __init__(self, task: Task, patience: int) -> None:
        pass

    def update(self, transition: Transition) -> None:
        pass


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (TwoMethods, "TwoMethods of mine 1.0 is no subclass of rrl.Agent"),
        (LearnsNothing, "LearnsNothing of mine 1.0 lacks the method update of every rrl.Agent"),
        (
            AsksForMore,
            r"AsksForMore of mine 1.0 cannot be made \(missing a required argument: 'patience'\): an",
        ),
    ],
)
def test_a_class_that_is_no_agent_is_refused_in_a_sentence(of: type, message: str) -> None:
    entry = AgentEntry(f"{__name__}:{of.__name__}", "", "", 1.0, origin="mine 1.0")
    with pytest.raises(ValueError, match=message):
        entry(full_task(), 0)
