"""The comparison: every agent on every machine with every seed, spread over processes or nodes, resumable.

First come the landscapes, which the figures and the oracle need: one job for each machine and load. Then come
the runs. Those of slow agents begin first, so that no long one is left for the end. Every finished job is a
file of its own, put in place in one move. A job whose file exists is not done again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from baselines import AGENTS, AgentFactory, typical_decide_ms
from baselines.comparison import run
from baselines.comparison.decisions import labelled
from baselines.comparison.failures import AttemptJob, FailedRun, RunsFailed, traceback_path
from baselines.comparison.kept_code import KeptFiles, code_of, kept_files, note_code, said_of_other_code
from baselines.comparison.landscapes import LandscapeJob, Load, read_landscape
from baselines.comparison.progress import JobProgress, PlainProgress
from baselines.comparison.run import CheckJob, RunJob, read_run
from baselines.comparison.settings import ComparisonSettings
from baselines.comparison.workers import JobExecutor, Workers
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import MINUTES, trace_of
from rrl.file_lock import lock
from rrl.space import ConfigurationSpace
from serving_adapter.whole_files import written_whole

BENCH_FILE = "comparison.json"
IF_NOT_TOLD: Mapping[str, Any] = {"tell_cores": False}  # by the files of earlier comparisons


def run_comparison(
    settings: ComparisonSettings,
    folder: Path,
    processes: int = 1,
    more_agents: Mapping[str, AgentFactory] | None = None,
    progress: JobProgress | None = None,
    warn: Callable[[str], None] = print,
    executor: JobExecutor | None = None,
) -> np.ndarray:
    """The table of decisions (see `decisions`): one row a decision, by agent, machine, seed and decision.

    A folder that holds the same comparison is continued, and may be asked for more agents or seeds than
    before. `more_agents` are factories beside AGENTS that can be pickled. Call this from a main module that
    is guarded by `__name__`, as the processes import it. An `executor` runs the jobs in place of processes.
    ValueError for what cannot be compared, before any long work. RunsFailed where agents failed, after all
    other runs.
    """
    known = AGENTS | dict(more_agents or {})
    settings.check_agents(known)
    scenarios = settings.make_scenarios()
    space = settings.make_space(scenarios)
    progress = progress or PlainProgress(Console())
    with _held(folder), executor or Workers(processes) as workers:
        bench = _checked_bench(folder, settings, scenarios)
        jobs = _run_jobs(settings, folder, scenarios, space, known)
        missing = _missing(jobs)
        _check_agents(workers, _first_of_agents(missing), progress)
        _warn_of_other_code(folder, kept_files(jobs, missing), warn)
        _write_bench(folder, bench)
        _find_landscapes(workers, missing, settings, progress, warn)
        failed = _live_runs(workers, missing, len(jobs), progress)
        if not failed:
            return _gathered(jobs, settings, space)
        whole = _of_whole_agents(jobs, failed)
        table = _gathered(whole, settings, space) if whole else None
        raise RunsFailed(failed, Counter(job.agent for job in jobs), table)


def check_comparisons(
    out: Path,
    comparisons: Mapping[str, ComparisonSettings],
    progress: JobProgress,
    warn: Callable[[str], None],
    executor: JobExecutor,
) -> None:
    """ValueError for what cannot be compared in any of these folders of `out`, before the first is begun.

    One warning is of the results of other code in all of them.
    """
    runs: list[RunJob] = []
    kept: list[KeptFiles] = []
    for name, settings in comparisons.items():
        folder = out / name
        settings.check_agents(AGENTS)
        scenarios = settings.make_scenarios()
        _checked_bench(folder, settings, scenarios)
        space = settings.make_space(scenarios)
        jobs = _run_jobs(settings, folder, scenarios, space, AGENTS)
        missing = _missing(jobs)
        runs += _first_of_agents(missing)
        kept += kept_files(jobs, missing)
    with executor as workers:
        _check_agents(workers, runs, progress)
    _warn_of_other_code(out, kept, warn)


def _run_jobs(
    settings: ComparisonSettings,
    folder: Path,
    scenarios: Sequence[Scenario],
    space: ConfigurationSpace,
    known: Mapping[str, AgentFactory],
) -> list[RunJob]:
    """One job for each run, by agent, machine and seed."""
    loads = {
        (machine, seed): Load.of(folder, machine, scenario, seed, settings)
        for machine, scenario in enumerate(scenarios)
        for seed in range(settings.seeds)
    }
    jobs = []
    for agent in settings.agents:
        own = folder / run.FOLDER / run.folder_name(agent)
        for (machine, seed), load in loads.items():
            path = own / f"machine-{machine:03}-seed-{seed}.npy"
            jobs.append(RunJob(path, agent, known[agent], seed, load, space, settings))
    return jobs


def _missing(jobs: Sequence[RunJob]) -> list[RunJob]:
    """Those that are not done."""
    return [job for job in jobs if read_run(job.path, job.settings.decisions, job.space.names) is None]


def _first_of_agents(jobs: Sequence[RunJob]) -> list[RunJob]:
    return list({job.agent: job for job in reversed(jobs)}.values())


def _check_agents(workers: JobExecutor, runs: Sequence[RunJob], progress: JobProgress) -> None:
    progress.stage("agents to be made", len(runs), len(runs))
    workers.run([CheckJob(job) for job in runs], lambda job, answer: None)


def _find_landscapes(
    workers: JobExecutor,
    missing: Sequence[RunJob],
    settings: ComparisonSettings,
    progress: JobProgress,
    warn: Callable[[str], None],
) -> None:
    jobs: dict[Path, LandscapeJob] = {}
    for each in missing:
        jobs |= each.load.jobs(each.space, settings)
    for folder in {path.parent for path in jobs}:
        folder.mkdir(parents=True, exist_ok=True)
    lowest_p95_ms: dict[LandscapeJob, float] = {}
    todo = []
    for path, job in jobs.items():
        known = read_landscape(path, len(job.space))
        if known is None:
            todo.append(job)
        else:
            lowest_p95_ms[job] = known.best_p95_ms

    def done(job: LandscapeJob, answer: tuple[float, float]) -> None:
        lowest_p95_ms[job] = answer[1]
        progress.job_done(f"{job}: at best {answer[0]:.4g}")

    for folder in {job.path.parent for job in todo}:
        note_code(folder, (job.path.name for job in todo), code_of())
    progress.stage("landscapes", len(jobs), len(jobs) - len(todo))
    workers.run(todo, done)
    _warn_of_slo(lowest_p95_ms, settings, warn)


def _live_runs(
    workers: JobExecutor, missing: Sequence[RunJob], total: int, progress: JobProgress
) -> list[FailedRun]:
    """Lives the missing runs; those that failed."""
    for folder, agent in {job.path.parent: job.agent for job in missing}.items():
        folder.mkdir(parents=True, exist_ok=True)
        note_code(folder, (job.path.name for job in missing if job.agent == agent), code_of(agent))
    for job in missing:
        traceback_path(job.path).unlink(missing_ok=True)  # of an earlier try
    slowest_first = sorted(missing, key=lambda job: -typical_decide_ms(job.agent))
    progress.stage("runs", total, total - len(missing))
    failed: dict[RunJob, FailedRun] = {}

    def done(job: AttemptJob, answer: float | FailedRun) -> None:
        if isinstance(answer, FailedRun):
            failed[job.run] = answer
            progress.job_done(f"{job}: failed")
        else:
            progress.job_done(f"{job}: {answer:.2f} x the oracle's cost")

    workers.run([AttemptJob(job) for job in slowest_first], done)
    return [failed[job] for job in missing if job in failed]


def _of_whole_agents(jobs: Sequence[RunJob], failed: Sequence[FailedRun]) -> list[RunJob]:
    incomplete = {each.agent for each in failed}
    return [job for job in jobs if job.agent not in incomplete]


def _gathered(jobs: Sequence[RunJob], settings: ComparisonSettings, space: ConfigurationSpace) -> np.ndarray:
    width = max(len(name) for job in jobs for name in (job.agent, job.load.scenario.name))
    tables = []
    for job in jobs:
        rows = read_run(job.path, settings.decisions, space.names)
        if rows is None:
            raise ValueError(f"{job.path} is gone or damaged: run the comparison again to make it")
        tables.append(labelled(rows, job.agent, job.load.scenario.name, job.seed, width))
    return np.concatenate(tables)


def _warn_of_other_code(out: Path, kept: Sequence[KeptFiles], warn: Callable[[str], None]) -> None:
    sentence = said_of_other_code(out, kept)
    if sentence is not None:
        warn(sentence)


def _warn_of_slo(
    lowest_p95_ms: Mapping[LandscapeJob, float], settings: ComparisonSettings, warn: Callable[[str], None]
) -> None:
    slo_p95_ms = settings.slo_p95_ms
    if slo_p95_ms is None:
        return
    broken = {job: p95_ms for job, p95_ms in lowest_p95_ms.items() if p95_ms > slo_p95_ms}
    if broken:
        worst = max(broken, key=lambda job: broken[job])
        latency = "mean latency" if settings.objective == "latency" else "p95 latency"
        warn(
            f"no configuration keeps a p95 of {slo_p95_ms:g} ms at {len(broken)} of the {len(lowest_p95_ms)} "
            f"machines and loads (on {worst.scenario.name} at {worst.rate_per_s:.3g}/s the lowest is "
            f"{broken[worst]:.3g} ms); there the agents are compared by {latency} alone"
        )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keeps the folder for this process alone within the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            lock(file.fileno(), wait=False)
        except OSError:
            raise ValueError(f"{folder} is held by another comparison that is writing it") from None
        yield


def _checked_bench(
    folder: Path, settings: ComparisonSettings, scenarios: Sequence[Scenario]
) -> dict[str, Any]:
    """The bench as its file has it; ValueError if the folder holds a comparison on another one."""
    bench = dict(json.loads(json.dumps(settings.bench(scenarios))))
    _check_same_bench(folder, bench)
    return bench


def _check_same_bench(folder: Path, bench: dict[str, Any]) -> None:
    """ValueError if the folder holds a comparison on another bench."""
    path = folder / BENCH_FILE
    if not path.is_file():
        return
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged: name another folder with --out") from None
    theirs, ours = _comparable(before), _comparable(bench)
    for name in ours | theirs:
        if theirs.get(name) != ours.get(name):
            shown = before.get(name, theirs.get(name)), bench.get(name)
            values = "" if dict in map(type, shown) else f" ({shown[0]}, not {shown[1]})"
            raise ValueError(
                f"{folder} holds a comparison with another {name.replace('_', ' ')}{values}: "
                "give its own options to go on with it, or name another folder with --out"
            )


def _comparable(bench: Mapping[str, Any]) -> dict[str, Any]:
    """What two benches are compared by: a trace by its contents alone, wherever it lies."""
    workload = str(bench.get("workload"))
    if trace_of(workload) is not None:
        workload = f"{MINUTES}trace" if workload.startswith(MINUTES) else "trace"
    return {**IF_NOT_TOLD, **bench, "workload": workload}


def _write_bench(folder: Path, bench: dict[str, Any]) -> None:
    with written_whole(folder / BENCH_FILE) as file:
        file.write(f"{json.dumps(bench, indent=2)}\n".encode())
