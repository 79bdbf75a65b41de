"""`--advise`: what it observes, what it goes by, and what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rrl.advice.advice import Source, recommend, source
from rrl.advice.earlier_table import EarlierTable, earlier_table, fitting_entry
from rrl.advice.observation import (
    MeasuredInForce,
    NothingObserved,
    failures_in_words,
    measure_in_force,
    observed_in_words,
)
from rrl.advice.possible_costs import PossibleCosts
from rrl.agent import Task
from rrl.interval import UNWATCHED, Interval, Watch
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import MeanLatency, StrictSLO
from rrl.space import ConfigurationSpace
from rrl.views.reference_table import FILE_NAME, Origin, ReferenceEntry, ReferenceTable

SPACE = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 4])
TASK = Task(SPACE)
FOUND = {"instances": 1, "max_batch_size": 1}
LEVEL = 7
HERE = Origin("localhost:8001", "triton 2.51.0")


def interval(mean_ms: float = 43.0, arrivals: int = 400, **fields: object) -> Measurement:
    """Ten seconds; an instance is busy for half of them."""
    latency = LatencySummary(mean_ms, mean_ms, 2 * mean_ms, 3 * mean_ms)
    telemetry = (ServiceTimes(1, 1, arrivals, 5.0),) if arrivals else ()
    measurement = Measurement(10.0, arrivals, arrivals, 0, latency, telemetry=telemetry)
    return replace(measurement, **fields)  # type: ignore[arg-type]


def unanswered_interval() -> Measurement:
    return Measurement(10.0, arrivals=400, completions=0, failures=30, backlog=370)


class Lived:
    """An environment that gives these measurements; it is to stay in the configuration found."""

    space = SPACE

    def __init__(self, *measurements: Measurement) -> None:
        self._left: Iterator[Measurement] = iter(measurements)

    def run(self, number: int, watch: Watch = UNWATCHED) -> Interval:
        assert number == 0
        measurement = next(self._left)
        cost = measurement.latency.mean_ms
        return Interval(measurement, number=number, cost=cost, observation=np.zeros(1))


def observed(*measurements: Measurement) -> MeasuredInForce:
    return measure_in_force(Lived(*measurements), 0, len(measurements), print)


def test_intervals_without_traffic_or_with_a_gap_are_waited_out_and_told_of_once() -> None:
    said: list[str] = []
    silent = replace(interval(arrivals=0), latency=LatencySummary())
    lived = Lived(silent, silent, interval(40.0), interval(gap="the server restarted"), interval(60.0))
    seen = measure_in_force(lived, 0, 2, said.append)
    assert said == ["no requests arrive: waiting"]
    assert [t.cost for t in seen.transitions] == [40.0, 60.0]
    assert seen.standing.mean_ms == pytest.approx(50.0)


def test_an_observation_ends_with_its_time_whether_requests_came_or_not() -> None:
    silent = replace(interval(arrivals=0), latency=LatencySummary())
    over = iter([False, True, True])
    seen = measure_in_force(Lived(silent, interval(40.0)), 0, 9, print, lambda: next(over))
    assert len(seen.transitions) == 1
    with pytest.raises(NothingObserved, match="no requests arrived"):
        measure_in_force(Lived(silent), 0, 9, print, lambda: True)


def test_what_is_observed_is_one_line() -> None:
    seen = observed(interval(), interval())
    assert observed_in_words(seen.standing, FOUND) == (
        "observed: 40.0 requests/s, mean 43.0 ms, p95 86.0 ms in 1 inst. · batch 1"
    )
    untold = observed(interval(latency=LatencySummary(43.0)))
    assert observed_in_words(untold.standing, {}) == "observed: 40.0 requests/s, mean 43.0 ms"
    unanswered = observed(unanswered_interval())
    assert observed_in_words(unanswered.standing, FOUND) == (
        "observed: no answers, 100.0% of the requests failed in 1 inst. · batch 1"
    )
    failing = observed(interval(failures=100)).standing
    assert ", 20.0% of the requests failed in" in observed_in_words(failing, FOUND)
    assert failures_in_words(failing).startswith("what follows goes by the latency")
    assert not failures_in_words(seen.standing)


def entry(**changes: object) -> ReferenceEntry:
    made = ReferenceEntry((30.0, 50.0), {"instances": 2, "max_batch_size": 4}, 20.0, 5, 9)
    return replace(made, **changes)  # type: ignore[arg-type]


def table(only: ReferenceEntry, objective: str = "latency") -> ReferenceTable:
    return ReferenceTable(objective, "ms", "minilm", {LEVEL: only}, HERE)


def fitting(
    only: ReferenceEntry, objective: str = "latency", rate_per_s: float = 40.0, **found: int
) -> ReferenceEntry | None:
    return fitting_entry(table(only), objective, rate_per_s, TASK, FOUND | found)


def test_a_table_is_gone_by_where_it_fits() -> None:
    assert fitting(entry()) == entry()
    assert fitting(entry(configuration={"instances": 2})) is not None
    assert fitting(entry(), rate_per_s=200.0) is None
    assert entry().apart_from(40.0) == 0.0
    assert entry().apart_from(75.0) == pytest.approx(math.log(1.5))
    assert entry().apart_from(20.0) == pytest.approx(math.log(1.5))
    assert fitting(entry(), objective="strict-slo") is None
    limited = replace(table(entry()), slo_p95_ms=80.0)
    assert fitting_entry(limited, "latency", 40.0, TASK, FOUND) is None


def test_a_table_is_not_gone_by_where_it_wants_what_may_not_be_changed() -> None:
    assert fitting(entry(configuration={"instances": 4, "max_batch_size": 1})) is None
    threads = {"instances": 2, "max_batch_size": 4, "intra_op_threads": 2}
    assert fitting(entry(configuration=threads)) is None
    assert fitting(entry(configuration=threads), intra_op_threads=1) is None
    assert fitting(entry(configuration=threads), intra_op_threads=2) is not None


def test_the_newest_table_of_the_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    assert earlier_table(None, "minilm", HERE, said.append) is None
    for name, model in (("a", "minilm"), ("b", "resnet"), ("several/bert", "bert")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        replace(table(entry()), model=model).write(tmp_path / "runs" / name / FILE_NAME)
    found = earlier_table(None, "minilm", HERE, said.append)
    assert found is not None
    assert found.path == Path("runs/a") / FILE_NAME
    several = earlier_table(None, "bert", HERE, said.append)
    assert several is not None
    assert several.path == Path("runs/several/bert") / FILE_NAME
    assert earlier_table(Path("runs/b"), "minilm", HERE, said.append) is not None
    assert not said


def earlier(origin: Origin | None, given: bool = False) -> tuple[EarlierTable | None, list[str]]:
    """What is found, and what is said, where the only table under `runs/` is of this origin."""
    folder = Path("runs/a")
    said: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    replace(table(entry()), origin=origin).write(folder / FILE_NAME)
    return earlier_table(folder if given else None, "minilm", HERE, said.append), said


OTHERS = [
    Origin("embedded", "rrl-serve 0.1"),
    Origin("localhost:8500", "triton 2.51.0"),
    Origin("localhost:8001", "rrl-serve 0.1"),
    Origin("simulation"),
]


@pytest.mark.parametrize("other", OTHERS)
def test_the_table_of_another_target_is_gone_by_only_where_it_is_given_and_that_is_said(
    other: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert earlier(other) == (None, [])
    given, _ = earlier(other, given=True)
    by = source(TASK, "latency", observed(interval()), FOUND, given, None)
    assert by is not None
    assert by.words.endswith(
        f"requests/s; it was measured on another target, {other.in_words()}, so trust it the less"
    )


def test_the_table_of_another_model_is_gone_by_only_where_it_is_given_and_that_is_said(
    tmp_path: Path,
) -> None:
    replace(table(entry()), model="resnet", origin=HERE).write(tmp_path / FILE_NAME)
    given = earlier_table(tmp_path, "minilm", HERE, pytest.fail)
    by = source(TASK, "latency", observed(interval()), FOUND, given, None)
    assert by is not None
    assert by.words.endswith("requests/s; it is of another model, 'resnet', so trust it the less")


@pytest.mark.parametrize("server", [None, "triton 2.51.0", "triton 2.60.0"])
def test_a_table_of_this_address_is_of_this_target_if_no_other_kind_of_server_is_known(
    server: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    origin = Origin.of("127.0.0.1:8001", server)
    for given in (False, True):
        found, said = earlier(origin, given)
        assert found is not None
        assert not found.elsewhere
        assert not said


def test_a_table_that_tells_no_target_is_gone_by_only_where_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, said = earlier(None)
    assert found is None
    assert said == [
        f"left out: runs/a/{FILE_NAME} tells no target; give it with --reference-table if it is of this one"
    ]
    given, said = earlier(None, given=True)
    assert given is not None
    assert given.elsewhere == "it does not tell on which target it was measured"
    assert not said


def test_a_table_that_cannot_be_read_is_said_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / FILE_NAME).write_text("levels: broken")
    said: list[str] = []
    assert earlier_table(None, "minilm", HERE, said.append) is None
    assert said[0].startswith(f"left out: runs/a/{FILE_NAME} is not a reference table")


def simulate(rate_per_s: float, slower: float) -> np.ndarray:
    return slower * np.array([43.0, 21.0, 30.0, 35.0])


def test_a_machine_file_goes_before_a_table_and_that_before_observation_alone() -> None:
    seen = observed(interval(), interval())
    known = EarlierTable(table(entry()), Path("runs/a"))
    by_file = source(TASK, "latency", seen, FOUND, known, simulate)
    by_table = source(TASK, "latency", seen, FOUND, known, None)
    alone = source(TASK, "latency", seen, FOUND, None, None)
    assert by_file is not None
    assert by_table is not None
    assert alone is not None
    assert by_file.words == "by simulation of the machine file"
    assert by_table.words == "by runs/a: it cost 20 ms in the mean of 5 intervals at 30.0 to 50.0 requests/s"
    assert alone.words == "by 2 intervals of the configuration in force alone"
    assert [s.extrapolates for s in (by_file, by_table, alone)] == [False, False, True]


def test_the_load_of_a_table_is_told_where_it_is_below_a_request_a_second_too() -> None:
    known = EarlierTable(table(entry(rate_per_s=(0.24, 0.36))), Path("runs/a"))
    by = source(TASK, "latency", observed(interval(arrivals=3), interval(arrivals=3)), FOUND, known, None)
    assert by is not None
    assert by.words.endswith("5 intervals at 0.24 to 0.36 requests/s")


def test_without_service_times_or_costs_there_is_nothing_to_go_by() -> None:
    assert source(TASK, "latency", observed(interval(telemetry=())), FOUND, None, None) is None
    unanswered = observed(unanswered_interval())
    assert source(TASK, "latency", unanswered, FOUND, None, simulate) is None


def foreseen(*costs: list[float], observed_cost: float = 43.0, extrapolates: bool = True) -> Source:
    k = len(costs)
    possible = PossibleCosts(
        np.array(costs), np.arange(float(k)), observed_cost, np.arange(k), np.arange(len(costs[0]))
    )
    return Source(possible, "by what there is", extrapolates)


def said(
    by: Source | None, task: Task = TASK, seen: MeasuredInForce | None = None
) -> tuple[dict[str, int] | None, list[str]]:
    lines: list[str] = []
    seen = seen or observed(interval(), interval())
    return recommend(lines.append, task, seen, FOUND, by), lines


PRESENT = [42.0, 43.0, 44.0] * 7


def test_a_recommendation_tells_the_gain_its_uncertainty_and_how_far_it_reaches() -> None:
    configuration, lines = said(foreseen(PRESENT, [14.0, 21.0, 34.0] * 7))
    assert configuration == {"instances": 1, "max_batch_size": 4}
    assert lines == [
        "recommended: 1 inst. · batch 4",
        "expected mean 21 ms (14 to 34 ms with 90%) instead of 43 ms, no worse than now with 98%",
        "(by what there is; no other value of max_batch_size was ever seen here: this is foreseen from how "
        "servers commonly behave; to measure it, tune: the same command without --advise)",
    ]


def test_what_was_measured_or_profiled_is_not_called_foreseen() -> None:
    _, lines = said(foreseen(PRESENT, [21.0] * 21, extrapolates=False))
    assert lines[-1] == "(by what there is)"


def test_a_gain_that_may_end_in_an_overload_says_so() -> None:
    _, lines = said(foreseen(PRESENT, [21.0] * 19 + [math.inf] * 2))
    assert "expected mean 21 ms (21 ms to a growing queue with 90%) instead of 43 ms" in lines[1]
    assert lines[1].endswith("no worse than now with 90%")


def test_nothing_sure_is_no_recommendation_but_a_guess() -> None:
    configuration, lines = said(foreseen(PRESENT, [20.0] * 14 + [70.0] * 7))
    assert configuration is None
    assert lines[0] == (
        "no change recommended: nothing is 90% sure to be better; best guess: 1 inst. · batch 4; "
        "expected mean 20 ms (20 to 70 ms with 90%) instead of 43 ms, no worse than now with 67%"
    )
    assert "to measure it, tune" in lines[1]


def test_where_nothing_promises_a_gain_there_is_no_guess() -> None:
    configuration, lines = said(foreseen(PRESENT, [42.5] * 21, [90.0] * 21))
    assert configuration is None
    assert lines[0] == "no change recommended: nothing promises 5% less than what is in force"


def test_a_source_that_contradicts_what_is_observed_is_trusted_the_less() -> None:
    _, lines = said(foreseen([20.0] * 21, [10.0] * 21))
    assert (
        "it lets expect mean 20 ms (20 to 20 ms with 90%) of what is in force, so trust it the less"
        in lines[2]
    )
    _, lines = said(foreseen([math.inf] * 21, [10.0] * 21))
    assert "trust it" not in lines[2]


def test_the_cost_of_another_objective_is_called_a_cost() -> None:
    _, lines = said(foreseen(PRESENT, [21.0] * 21), Task(SPACE, StrictSLO(50.0)))
    assert lines[1].startswith("expected cost 21 ms (21 to 21 ms with 90%)")
    _, lines = said(foreseen(PRESENT, [21.0] * 21), Task(SPACE, MeanLatency(50.0)))
    assert lines[1].startswith("expected cost 21 ms")


def test_with_nothing_to_go_by_it_says_what_is_missing() -> None:
    configuration, lines = said(None)
    assert configuration is None
    assert len(lines) == 1
    assert (
        "tells no service times by batch size, and there is neither an earlier run on this target that fits "
        "nor a machine file to go by"
    ) in lines[0]


def test_where_nothing_was_completed_that_is_the_reason_and_not_what_the_target_tells() -> None:
    seen = observed(unanswered_interval(), unanswered_interval())
    configuration, lines = said(None, seen=seen)
    assert configuration is None
    assert lines == [
        "no recommendation: no request was answered in the 20.0 s observed (800 arrived, 60 failed, 370 "
        "wait); see to it that the server answers, or give a longer --interval-s if a request takes that long"
    ]
