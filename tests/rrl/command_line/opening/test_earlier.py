"""What a resumed run says about its target, which may be another than when it began."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rrl.agent import Agent, Transition
from rrl.command_line.opening.earlier import LIMITS, Earlier, as_before, limits_to_json
from rrl.command_line.options.option_values import tuning_intervals
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.watch_options import WatchOptions
from rrl.journal import Journal
from rrl.records import NO_END
from rrl.tuning.pretraining import Pretraining
from rrl.tuning.stop import Stop
from rrl.views.run_metrics import RunMetrics
from tests.rrl.test_journal import SPACE, header, record

SEVERAL_MODELS = {"jointly", "bls_composing_models"}
OF_THE_RUN = TuneOptions(
    max_changes_per_hour=4,
    change_window=("Mon-Fri 22:00-06:00",),
    forbid=("max_batch_size",),
    cores=3,
    on_foreign_change="stop",
    count_silence=True,
)
THEN = {"instances": 1, "max_batch_size": 1, "intra_op_threads": 2}  # as the journal's header found it


@pytest.mark.parametrize(
    ("server", "now", "says"),
    [
        ("rrl-serve 1", THEN, ""),
        ("rrl-serve 1", THEN | {"instances": 2}, ""),  # that is tuned
        ("triton 2.51", THEN, "the server is triton 2.51 instead of rrl-serve 1"),
        ("triton 2.51", THEN | {"intra_op_threads": 4}, "instead of rrl-serve 1, intra 2 -> 4"),
    ],
)
def test_a_target_that_is_another_now_is_told(server: str, now: dict[str, int], says: str) -> None:
    earlier = Earlier(TuneOptions(), replace(header(), server="rrl-serve 1"), [], None)
    target: Any = SimpleNamespace(server=server, configuration=lambda: now)
    out = io.StringIO()
    earlier.tell_how_found(target, Console(file=out, width=300))
    assert says in out.getvalue()
    assert ("what it learned may not hold" in out.getvalue()) == bool(says)


def test_a_resumed_run_may_change_what_it_might_and_bears_others_as_it_did() -> None:
    limits = limits_to_json(OF_THE_RUN)
    assert limits is not None
    assert set(limits) == set(LIMITS) - SEVERAL_MODELS
    completed = as_before(TuneOptions(), replace(header(), limits=limits))
    assert {name: getattr(completed, name) for name in LIMITS} == {
        name: getattr(OF_THE_RUN, name) for name in LIMITS
    }


@pytest.mark.parametrize(
    ("count_silence", "used"),
    [(False, 30 + 100), (True, 30 + 100 + 7)],  # in the journal, and not in it any more
)
def test_a_duration_is_of_what_comes_however_much_the_run_did_before(
    tmp_path: Path, count_silence: bool, used: int
) -> None:
    journal = Journal.create(tmp_path, header(earlier={"dropped": {"tune": 100, "wait": 5}, "silent": 7}))
    for _ in range(30):
        journal.append(record(0))
    journal.close()
    with pytest.raises(ValueError, match=rf"is complete \({used} intervals\)"):
        Earlier.of(TuneOptions(resume=tmp_path, count_silence=count_silence))
    options = TuneOptions(resume=tmp_path, count_silence=count_silence, duration="1m")
    planned = Earlier.of(options).planned(header(intervals=tuning_intervals(options)))
    assert planned.intervals == used + tuning_intervals(options)
    assert planned.resumed_at_s is not None
    assert planned.resumed_at_s > record().wall_time_s


def test_a_new_run_is_planned_as_its_options_say() -> None:
    assert Earlier(TuneOptions(duration="1m"), None, [], None).planned(header()) == header()


def test_a_watch_that_goes_on_with_a_run_has_no_end() -> None:
    journal = Path("runs/today")
    assert tuning_intervals(as_before(TuneOptions(resume=journal), header(intervals=30))) == 30
    assert tuning_intervals(as_before(WatchOptions(resume=journal), header(intervals=30))) == NO_END


class LearnsSlowly(Agent):
    """Each interval takes five minutes to learn; notes for how long nothing was heard by then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.metrics = RunMetrics(lambda: self.now_s)
        self.quiet_s: list[float] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        return SPACE.action(0)

    def update(self, transition: Transition) -> None:
        self.now_s += 300.0
        self.quiet_s.append(self.metrics.quiet_s)


def test_each_interval_that_an_agent_is_taught_is_a_sign_of_life(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    for number in range(3):
        journal.append(record(number))
    journal.close()
    agent, stop = LearnsSlowly(), Stop(lambda text: None)
    earlier = Earlier(TuneOptions(), header(), [], Pretraining.read(tmp_path))
    earlier.teach(agent, header(), Console(quiet=True), stop, agent.metrics.goes_on)
    assert agent.quiet_s == [300.0] * 3
    assert agent.metrics.quiet_s == 0.0


def test_options_at_their_defaults_are_no_limits() -> None:
    assert limits_to_json(TuneOptions()) is None
