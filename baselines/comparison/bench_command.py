"""`rrl-bench v1`: agents on every scenario of a version of the bench, and one file with the result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from baselines import DEFAULT_AGENT, called_now
from baselines.comparison import summary
from baselines.comparison.bench_result import FILE_NAME, SCORED, BenchResult, result_of
from baselines.comparison.comparison import check_comparisons, run_comparison
from baselines.comparison.endings import make_output, told_in_a_sentence, warn
from baselines.comparison.failures import FailedRun, NoResults, RunsFailed
from baselines.comparison.progress import JobProgress, make_progress
from baselines.comparison.ray_workers import executor
from baselines.comparison.settings import ComparisonSettings
from baselines.comparison.summary import AgentSummary
from envs.scenarios.bench import BENCHES, VersionedBench
from envs.scenarios.public_traces import TRACES, find_traces
from serving_adapter.flags.parsing import Command, parse_command

ORACLE = "oracle"  # What every score is relative to.
TRACES_FOLDER = "traces"  # In the results: public traces as they are replayed.


@dataclass(frozen=True)
class BenchOptions:
    """Runs agents on the scenarios of a version. The same command goes on where it was stopped."""

    agents: str = f"{DEFAULT_AGENT},rule,random"
    """Names with commas between; those of installed packages, too. The oracle is always added."""
    traces: Path | None = None
    """Folder with the public traces, as they were published; scenarios of those it lacks are left out."""
    scenarios: str = ""
    """Names with commas between; without it, all."""
    out: Path = Path("runs/bench")
    """Folder of the results: result.json, and a comparison for each scenario."""
    processes: int | None = None
    """How many runs at once (default: one a core, or one a CPU of the cluster)."""
    ray: str = ""
    """HOST:PORT of the head of a Ray cluster, whose nodes then do the runs."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"--processes must be at least 1, got {self.processes}")

    def agent_names(self) -> tuple[str, ...]:
        names = tuple(name.strip() for name in self.agents.split(",") if name.strip())
        return names if ORACLE in names or not names else (*names, ORACLE)

    def scenario_names(self, bench: VersionedBench) -> list[str]:
        """The scenarios to run; ValueError for one that the bench does not have."""
        asked = [name.strip() for name in self.scenarios.split(",") if name.strip()]
        for name in asked:
            if name not in bench.scenarios:
                known = ", ".join(bench.scenarios)
                raise ValueError(f"unknown scenario {name!r} of the bench {bench.version}; known: {known}")
        return [name for name in bench.scenarios if name in asked or not asked]


class BenchRun(NamedTuple):
    """What became of a bench."""

    result: BenchResult | None  # of the agents that have all of their runs in all scenarios
    failure: RunsFailed | None  # of the others


def run_bench(bench: VersionedBench, options: BenchOptions, progress: JobProgress) -> BenchRun:
    """The scenarios that can run; ValueError for what cannot be compared, before long work."""
    chosen = options.scenario_names(bench)
    traces = {} if options.traces is None else find_traces(options.traces, options.out / TRACES_FOLDER)
    left_out = {name: "not asked for" for name in bench.scenarios if name not in chosen}
    settings = {}
    for name in chosen:
        scenario = bench.scenarios[name]
        if scenario.trace is not None and scenario.trace not in traces:
            left_out[name] = f"no file of the trace {scenario.trace} was given with --traces"
            continue
        settings[name] = ComparisonSettings(
            agents=options.agent_names(),
            machine=scenario.machine,
            truth=scenario.truth,
            workload=scenario.workload if scenario.trace is None else str(traces[scenario.trace]),
            decisions=scenario.decisions,
            tell_cores=True,
        )
    if not settings:
        raise ValueError("no scenario can run: give --traces FOLDER, or other --scenarios")
    check_comparisons(options.out, settings, progress, warn, executor(options.ray, options.processes))
    summaries: dict[str, list[AgentSummary]] = {}
    failed: list[FailedRun] = []
    for name, each in settings.items():
        workers = executor(options.ray, options.processes)
        try:
            table: np.ndarray | None = run_comparison(
                each, options.out / name, progress=progress, warn=_told_of_all, executor=workers
            )
        except RunsFailed as error:
            table = error.whole
            failed += [one._replace(where=f"{one.where} in {name}") for one in error.failed]
        summaries[name] = [] if table is None else summary.summarise(table, summary.figures())
    if not failed:
        return BenchRun(result_of(bench, summaries, left_out), None)
    asked = sum(each.seeds * len(each.make_scenarios()) for each in settings.values())
    failure = RunsFailed(failed, dict.fromkeys(options.agent_names(), asked))
    incomplete = {each.agent for each in failed}
    whole = {name: [row for row in rows if row.agent not in incomplete] for name, rows in summaries.items()}
    return BenchRun(result_of(bench, whole, left_out) if all(whole.values()) else None, failure)


def _told_of_all(sentence: str) -> None:
    """Takes a scenario's warning of other code, of which `check_comparisons` has told for all of them."""


def result_table(result: BenchResult) -> Table:
    """A row an agent, the best score first; a column a scenario."""
    table = Table(title=f"rrl-bench {result.bench}: cost / oracle's over the whole run", header_style="dim")
    table.title_justify = "left"
    table.add_column("agent", no_wrap=True)
    for name in ("score", *result.scenarios):
        table.add_column(name.replace("-", "\n"), justify="right")
    for agent in sorted(result.score, key=lambda agent: result.score[agent]):
        ratios = (each["figures"][agent][SCORED]["mean"] for each in result.scenarios.values())
        table.add_row(agent, f"{result.score[agent]:.3f}", *(f"{ratio:.3g}" for ratio in ratios))
    return table


def _run(bench: VersionedBench, options: BenchOptions) -> None:
    present = [called_now(name.strip()) for name in options.agents.split(",")]
    with told_in_a_sentence(options.out):
        _bench(bench, replace(options, agents=",".join(present)), make_output())


def _bench(bench: VersionedBench, options: BenchOptions, console: Console) -> None:
    progress = make_progress(console)
    try:
        result, failure = run_bench(bench, options, progress)
        if result is not None:
            result.write(options.out / FILE_NAME)
    finally:
        progress.close()
    if result is not None:
        _print_result(bench, options, result, console)
    elif failure is not None:
        raise NoResults(failure, options.out / FILE_NAME)
    if failure is not None:
        raise failure


def _print_result(
    bench: VersionedBench, options: BenchOptions, result: BenchResult, console: Console
) -> None:
    console.print(result_table(result))
    for name, why in result.left_out.items():
        trace = bench.scenarios[name].trace
        where = f": {TRACES[trace].source}" if trace is not None else ""
        console.print(f"left out {name}: {why}{where}", soft_wrap=True)
    console.print(f"in {options.out / FILE_NAME}", soft_wrap=True)


COMMANDS = {
    version: Command(BenchOptions, partial(_run, bench), f"run the {len(bench.scenarios)} scenarios")
    for version, bench in BENCHES.items()
}


def main(argv: list[str] | None = None) -> None:
    parse_command("rrl-bench", COMMANDS, argv)()


if __name__ == "__main__":
    main()
