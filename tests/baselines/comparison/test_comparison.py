"""What every run of a comparison is, and how runs make a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines import AGENTS, AgentFactory
from baselines.agents import AgentEntry
from baselines.comparison import ComparisonSettings, run_comparison
from baselines.comparison.comparison import _run_jobs, _write_bench
from baselines.comparison.failures import AttemptJob, FailedRun, RunsFailed
from baselines.comparison.landscapes import Landscape
from baselines.comparison.run import RunJob, compile_kernels
from envs.scenarios.families import SLOWDOWN_AT, family_cores
from rrl.agent import Agent, Hindsight, Task, Transition
from rrl.queueing.kernels import replayed_ms
from rrl.queueing.machine import Machine
from tests.support.failing_agent import ExitsToAct, FailsToAct
from tests.support.in_this_process import InThisProcess

SMALL = "instances=1:3,intra_op_threads=1,2,4"


def settings(*agents: str, **changes: Any) -> ComparisonSettings:
    values: dict[str, Any] = {"machine": "family:0", "decisions": 12, "knobs": SMALL} | changes
    return ComparisonSettings(agents, **values)


def lived(folder: Path, of: ComparisonSettings) -> list[np.ndarray]:
    """The rows of every run, in this process."""
    found = []
    for job in jobs(folder, of):
        for landscape in job.load.jobs(job.space, of).values():
            landscape.path.parent.mkdir(parents=True, exist_ok=True)
            landscape()
        job.path.parent.mkdir(parents=True, exist_ok=True)
        job()
        found.append(np.load(job.path))
    return found


def jobs(folder: Path, of: ComparisonSettings, known: Mapping[str, AgentFactory] = AGENTS) -> list[RunJob]:
    scenarios = of.make_scenarios()
    return _run_jobs(of, folder, scenarios, of.make_space(scenarios), known)


def without_times(table: np.ndarray) -> list[tuple[object, ...]]:
    names = [name for name in table.dtype.names or () if name != "decide_ms"]
    return table[names].tolist()


class Silent:
    def __init__(self) -> None:
        self.done: list[str] = []

    def stage(self, name: str, total: int, done: int) -> None:
        pass

    def job_done(self, text: str) -> None:
        self.done.append(text)

    def close(self) -> None:
        pass


def always_first(task: Task, seed: int, background_training: bool = False) -> Agent:
    return First(task)


class First(Agent):
    """Chooses configuration 0 for ever."""

    def __init__(self, task: Task) -> None:
        self._space = task.space

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self._space.action(0)

    def update(self, transition: Transition) -> None:
        pass


def test_the_number_of_processes_does_not_matter(tmp_path: Path) -> None:
    one = settings("random", "oracle", machine="family:0,1", seeds=2)
    alone = run_comparison(one, tmp_path / "alone", progress=Silent(), executor=InThisProcess())
    together = run_comparison(one, tmp_path / "together", 2, progress=Silent())
    assert without_times(alone) == without_times(together)
    assert len(alone) == 2 * 2 * 2 * 12
    order = [(row["agent"], row["machine"], int(row["seed"]), int(row["decision"])) for row in alone]
    assert order == [
        (agent, machine, seed, decision)
        for agent in ("random", "oracle")
        for machine in ("family-0", "family-1")
        for seed in (0, 1)
        for decision in range(12)
    ]


def test_a_comparison_goes_on_with_what_is_there(tmp_path: Path) -> None:
    few = settings("random", seeds=2)
    before = run_comparison(few, tmp_path, progress=Silent(), executor=InThisProcess())
    (gone,) = tmp_path.glob("runs/random/*seed-1.npy")
    kept = next(iter(tmp_path.glob("runs/random/*seed-0.npy")))
    gone.unlink()
    kept_at = kept.stat().st_mtime_ns
    progress = Silent()
    after = run_comparison(few, tmp_path, progress=progress, executor=InThisProcess())
    assert without_times(before) == without_times(after)
    assert kept.stat().st_mtime_ns == kept_at
    assert [text.split(":")[0] for text in progress.done] == ["random on family-0, seed 1"]

    more = Silent()
    bigger = settings("random", "oracle", seeds=2)
    both = run_comparison(bigger, tmp_path, progress=more, executor=InThisProcess())
    assert {text.split(" on ")[0] for text in more.done} == {"oracle"}
    assert without_times(both[both["agent"] == "random"]) == without_times(before)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"decisions": 13}, "decisions (12, not 13)"),
        ({"knobs": "instances=1:2"}, "knobs"),
        ({"machine": "family:1"}, "machine (family:0, not family:1)"),
        ({"rate_per_s": 10.0}, "rate per s (14.0, not 10.0)"),
    ],
)
def test_a_folder_of_another_comparison_is_refused(
    tmp_path: Path, changes: dict[str, object], what: str
) -> None:
    first = settings("oracle")
    _write_bench(tmp_path, first.bench(first.make_scenarios()))
    with pytest.raises(ValueError, match="holds a comparison with another") as caught:
        run_comparison(settings("oracle", **changes), tmp_path, 1, progress=Silent())
    assert what in str(caught.value)


def test_agents_that_are_told_less_are_no_part_of_the_comparison(tmp_path: Path) -> None:
    told = settings("oracle", tell_cores=True)
    _write_bench(tmp_path, told.bench(told.make_scenarios()))
    with pytest.raises(ValueError, match=r"holds a comparison with another tell cores \(True, not False\)"):
        run_comparison(settings("oracle"), tmp_path, 1, progress=Silent())


def test_a_folder_that_does_not_tell_of_told_cores_goes_on(tmp_path: Path) -> None:
    of = settings("oracle", decisions=2)
    bench = of.bench(of.make_scenarios())
    del bench["tell_cores"]
    _write_bench(tmp_path, bench)
    assert len(run_comparison(of, tmp_path, 1, progress=Silent(), executor=InThisProcess())) == 2
    with pytest.raises(ValueError, match=r"another tell cores \(False, not True\)"):
        run_comparison(replace(of, tell_cores=True), tmp_path, 1, progress=Silent())


def test_a_trace_is_known_by_what_it_holds(tmp_path: Path) -> None:
    def written(name: str, *counts: int) -> ComparisonSettings:
        rows = [f"{minute},{count}\n" for minute, count in enumerate(counts)]
        (tmp_path / name).write_text("minute,requests\n" + "".join(rows))
        return settings("oracle", workload=str(tmp_path / name), decisions=2)

    out = tmp_path / "out"
    first = written("day.csv", 60, 120, 90)
    run_comparison(first, out, 1, progress=Silent(), executor=InThisProcess())
    moved = written("moved.csv", 60, 120, 90)
    run_comparison(moved, out, 1, progress=Silent(), executor=InThisProcess())
    in_minutes = replace(moved, workload=f"minutes:{moved.workload}", decisions=2)
    with pytest.raises(ValueError, match="holds a comparison with another workload"):
        run_comparison(in_minutes, out, 1, progress=Silent())
    with pytest.raises(ValueError, match="holds a comparison with another workload"):
        run_comparison(settings("oracle", decisions=2), out, 1, progress=Silent())
    with pytest.raises(ValueError, match="holds a comparison with another trace: give its own options"):
        run_comparison(written("day.csv", 120, 60, 90), out, 1, progress=Silent())


def test_agents_beside_the_known_ones_can_be_compared(tmp_path: Path) -> None:
    table = run_comparison(settings("always/first"), tmp_path, 1, {"always/first": always_first}, Silent())
    assert set(table["agent"]) == {"always/first"}
    assert (table["instances"] == 1).all()
    assert (table["intra_op_threads"] == 1).all()


def test_no_decision_is_charged_for_compiling(tmp_path: Path) -> None:
    compile_kernels()
    compiled = len(replayed_ms.signatures)
    lived(tmp_path, settings("guided", decisions=3))
    knobs = "instances=1:2,max_batch_size=1,2,8,max_queue_delay_us=0,10000"
    lived(tmp_path / "batches", settings("guided", truth="batching", decisions=3, knobs=knobs))
    assert 0 < compiled == len(replayed_ms.signatures)


def test_all_agents_meet_the_same_requests(tmp_path: Path) -> None:
    oracle, fixed = lived(tmp_path, settings("oracle", "best-fixed", decisions=30))
    assert without_times(oracle) == without_times(fixed)  # one load: the same choice, so the same latencies
    random = lived(tmp_path, settings("random", decisions=30))[0]
    np.testing.assert_array_equal(random["arrival_rate_per_s"], oracle["arrival_rate_per_s"])
    same = (random["instances"] == oracle["instances"]) & (
        random["intra_op_threads"] == oracle["intra_op_threads"]
    )
    assert same.any()
    np.testing.assert_array_equal(random["cost_ms"][same], oracle["cost_ms"][same])


def test_seeds_differ_and_machines_do_not_depend_on_their_company(tmp_path: Path) -> None:
    one, other = lived(tmp_path / "a", settings("random", seeds=2))
    assert (one["cost_ms"] != other["cost_ms"]).all()
    in_company = lived(tmp_path / "b", settings("random", machine="family:1,0"))[1]
    assert without_times(in_company) == without_times(one)


def test_expected_costs_are_what_the_intervals_cost_on_average(tmp_path: Path) -> None:
    (rows,) = lived(tmp_path, settings("oracle", decisions=150))
    assert rows["cost_ms"].mean() == pytest.approx(rows["expected_ms"].mean(), rel=0.05)
    assert rows["p95_ms"].mean() == pytest.approx(rows["expected_p95_ms"].mean(), rel=0.05)
    assert (rows["oracle_ms"] == rows["expected_ms"]).all()
    assert ((rows["cpu_utilisation"] > 0) & (rows["cpu_utilisation"] <= 1)).all()


def test_a_machine_that_slows_down_is_judged_by_its_new_optimum(tmp_path: Path) -> None:
    decisions = SLOWDOWN_AT + 20
    slowing = settings("oracle", truth="slowdown", decisions=decisions)
    (rows,) = lived(tmp_path / "slowing", slowing)
    (steady,) = lived(tmp_path / "steady", settings("oracle", decisions=decisions))
    before, after = slice(0, SLOWDOWN_AT), slice(SLOWDOWN_AT, None)
    np.testing.assert_array_equal(rows["cost_ms"][before], steady["cost_ms"][before])
    assert (rows["cost_ms"][after] > steady["cost_ms"][after]).all()
    assert (rows["expected_ms"] == rows["oracle_ms"]).all()
    assert len(set(rows["oracle_ms"])) == 2
    assert rows["cost_ms"][after].mean() == pytest.approx(rows["oracle_ms"][-1], rel=0.1)


def test_only_serf_is_told_the_machine_and_only_hindsight_the_future(tmp_path: Path) -> None:
    tasks: dict[str, Task] = {}

    def make(name: str, task: Task, seed: int, background_training: bool = False) -> Agent:
        tasks[name] = task
        return First(task)

    names = ("serf", "oracle", "best-fixed", "guided")
    known: dict[str, AgentFactory] = {name: partial(make, name) for name in names}
    for job in jobs(tmp_path, settings(*names, cores=4), known):
        job.make_agent(Hindsight(np.ones(1), lambda rate_per_s: np.ones(9)))
    assert [name for name in names if tasks[name].machine is not None] == ["serf"]
    assert [name for name in names if tasks[name].hindsight is not None] == ["oracle", "best-fixed"]
    assert all(task.cores == 4 for task in tasks.values())


def test_without_knobs_the_space_is_as_large_as_every_table_allows(tmp_path: Path) -> None:
    Machine.invent(0, intra_op_threads=[1, 2, 4], busy_instances=range(1, 7)).save(tmp_path / "a.npz")
    Machine.invent(1, inter_op_threads=[1, 2]).save(tmp_path / "b.npz")
    of = settings("random", machine=f"{tmp_path / 'a.npz'},{tmp_path / 'b.npz'}", knobs="")
    scenarios = of.make_scenarios()
    assert [scenario.name for scenario in scenarios] == ["a", "b"]
    largest = {knob.name: knob.values[-1] for knob in of.make_space(scenarios).knobs}
    assert largest == {"instances": 6, "inter_op_threads": 2, "intra_op_threads": 4}


def test_a_machine_of_a_file_has_the_cores_that_the_agents_are_told(tmp_path: Path) -> None:
    Machine.invent(0).save(tmp_path / "measured.npz")
    of = settings("random", machine=str(tmp_path / "measured.npz"), cores=4)
    assert [scenario.cores for scenario in of.make_scenarios()] == [4]
    (generated,) = settings("random", cores=4).make_scenarios()
    assert generated.cores == family_cores(0)


def test_a_failure_of_an_agent_is_not_taken_for_bad_input(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, settings("oracle"))
    job.path.parent.mkdir(parents=True)
    for landscape in job.load.jobs(job.space, job.settings).values():
        landscape.path.parent.mkdir(exist_ok=True)
        landscape()
    with pytest.raises(RuntimeError, match="the run of broken on family-0, seed 0 failed"):
        replace(job, agent="broken", factory=lambda task, seed, background_training=False: FailsToAct())()


def test_a_run_that_fails_leaves_the_others_and_its_agent_out_of_the_table(tmp_path: Path) -> None:
    lives = [0]

    def make(task: Task, seed: int, background_training: bool = False) -> Agent:
        lives[0] += 1
        return (
            FailsToAct() if lives[0] == 3 else First(task)
        )  # The first is made to learn whether it can act.

    of, progress = settings("mine", "random", seeds=2, decisions=3), Silent()
    with pytest.raises(RunsFailed) as caught:
        run_comparison(of, tmp_path, 1, {"mine": make}, progress, executor=InThisProcess())
    assert str(caught.value).startswith(
        "1 of 2 runs of mine failed (ValueError: a fault of the agent's own on family-0 with seed 1); "
        "an agent without all of its runs is left out of the results"
    )
    assert caught.value.whole is not None
    assert set(caught.value.whole["agent"]) == {"random"}
    assert "mine on family-0, seed 1: failed" in progress.done
    assert len(progress.done) == 5  # the landscape, too
    own = tmp_path / "runs" / "mine"
    told = (own / "machine-000-seed-1.txt").read_text(encoding="utf-8")
    assert "in act" in told
    assert "the run of mine on family-0, seed 1 failed" in told

    again = Silent()
    table = run_comparison(of, tmp_path, 1, {"mine": make}, again, executor=InThisProcess())
    assert [text.split(":")[0] for text in again.done] == ["mine on family-0, seed 1"]
    assert set(table["agent"]) == {"mine", "random"}
    assert not list(own.glob("*.txt"))


def test_an_agent_that_ends_its_program_ends_its_run_alone(tmp_path: Path) -> None:
    def make(task: Task, seed: int, background_training: bool = False) -> Agent:
        return ExitsToAct()

    of = settings("mine", "random", decisions=3)
    with pytest.raises(
        RunsFailed, match=r"1 of 1 runs of mine failed \(SystemExit: an agent's own end"
    ) as caught:
        run_comparison(of, tmp_path, 1, {"mine": make}, Silent(), executor=InThisProcess())
    assert caught.value.whole is not None
    assert set(caught.value.whole["agent"]) == {"random"}


def test_an_agent_that_cannot_act_on_a_later_machine_fails_there_alone(tmp_path: Path) -> None:
    lives = [0]

    def make(task: Task, seed: int, background_training: bool = False) -> Agent:
        lives[0] += 1
        if lives[0] == 3:
            raise ValueError("too small a machine")
        return First(task)

    of = settings("mine", machine="family:0,1", decisions=3)
    with pytest.raises(
        RunsFailed,
        match=r"\(ValueError: agent 'mine' cannot act here: too small a machine on family-1 with seed 0\)",
    ) as caught:
        run_comparison(of, tmp_path, 1, {"mine": make}, Silent(), executor=InThisProcess())
    assert caught.value.whole is None


def test_a_failure_is_told_by_its_own_error_whatever_caused_that(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, settings("oracle"))

    def make(task: Task, seed: int, background_training: bool = False) -> Agent:
        try:
            raise KeyError("key")
        except KeyError as error:
            raise RuntimeError("no such key in the table") from error

    landscapes = [Landscape(np.ones(9), np.ones(9))] * job.load.decisions
    failed = AttemptJob(replace(job, agent="mine", factory=make)).work(landscapes)
    assert isinstance(failed, FailedRun)
    assert failed.why == "RuntimeError: no such key in the table"
    assert "KeyError" in failed.traceback
    assert failed.traceback.endswith("RuntimeError: no such key in the table\n")


def test_an_agent_whose_package_is_lacking_ends_the_comparison(tmp_path: Path) -> None:
    lacking = AgentEntry("nowhere.to_be:Found", "", "", 0.1, origin="a package 1.0")
    (job,) = jobs(tmp_path, settings("oracle"))
    landscapes = [Landscape(np.ones(9), np.ones(9))] * job.load.decisions
    with pytest.raises(ValueError, match=r"agent 'mine' cannot act here: nowhere.* cannot be imported"):
        AttemptJob(replace(job, agent="mine", factory=lacking)).work(landscapes)


def test_of_many_failed_runs_few_are_named() -> None:
    failed = [FailedRun("mine", f"family-{n} with seed 0", f"ValueError: {n % 2}", "") for n in range(5)]
    failed.append(FailedRun("other", "family-0 with seed 0", "KeyError", ""))
    assert str(RunsFailed(failed, {"mine": 8, "other": 8})).startswith(
        "5 of 8 runs of mine failed (ValueError: 0 on family-0 with seed 0 and family-2 with seed 0, "
        "ValueError: 1 on family-1 with seed 0, and 2 more); "
        "1 of 8 runs of other failed (KeyError on family-0 with seed 0); an agent"
    )


def test_agents_of_alike_names_keep_their_runs_apart(tmp_path: Path) -> None:
    known = dict.fromkeys(("ppo:small", "ppo/small", "ppo_small", "ppo small"), AGENTS["random"])
    paths = [job.path for job in jobs(tmp_path, settings(*known), known)]
    assert len(set(paths)) == 4
    assert {path.parent.parent for path in paths} == {tmp_path / "runs"}
