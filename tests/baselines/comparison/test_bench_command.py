"""`rrl-bench`: scenarios that do not change, and a result of one form."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from baselines import AGENTS
from baselines.comparison import bench_command
from baselines.comparison.bench_command import main
from baselines.comparison.bench_result import FORMAT, BenchResult
from baselines.comparison.settings import ComparisonSettings
from envs.scenarios import bench, public_traces
from envs.scenarios.bench import BENCHES, V1, BenchScenario, VersionedBench
from envs.scenarios.public_traces import TRACES, PublicTrace
from scripts.docs.leaderboard import leaderboard_page
from tests.support.failing_agent import FAILING
from tests.support.in_this_process import InThisProcess

PUBLISHED = {"v1": "8b10a694b0687fbb"}
TINY = VersionedBench(
    "v1",
    {
        "small": BenchScenario("profiled:0", "batches", decisions=4),
        "traced": BenchScenario("profiled:0", "batches", trace="short", decisions=4),
    },
)
TRACE = "minute,requests\n0,60\n1,120\n2,60\n3,90\n"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the trace of a bench of two short scenarios."""
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "any name.csv").write_text(TRACE)
    (folder / "other.csv").write_text(TRACE + "4,1\n")
    checksum = hashlib.sha256(TRACE.encode()).hexdigest()
    for module in (bench, bench_command, public_traces):
        monkeypatch.setattr(module, "TRACES", {"short": PublicTrace(checksum, "a trace", "here", "nobody")})
    monkeypatch.setattr(bench_command, "executor", lambda address, processes: InThisProcess())
    command = bench_command.COMMANDS["v1"]
    run = partial(bench_command._run, TINY)
    monkeypatch.setitem(bench_command.COMMANDS, "v1", command._replace(run=run))
    return folder


def test_a_published_version_does_not_change() -> None:
    assert {version: each.fingerprint for version, each in BENCHES.items()} == PUBLISHED


def test_any_change_of_a_scenario_or_a_trace_has_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [VersionedBench("v1", {**V1.scenarios, "family": BenchScenario("family:1200-1202")})]
    others.append(VersionedBench("v2", V1.scenarios))
    before = V1.fingerprint
    assert before not in {other.fingerprint for other in others}
    other = PublicTrace("0" * 64, "", "", "")
    monkeypatch.setattr(bench, "TRACES", {**TRACES, "wikipedia-days": other})
    assert V1.fingerprint != before


@pytest.mark.parametrize("name", V1.scenarios)
def test_every_scenario_can_be_made_on_machines_for_judging(name: str) -> None:
    scenario = V1.scenarios[name]
    settings = ComparisonSettings(
        ("random",), scenario.machine, scenario.truth, scenario.workload, decisions=scenario.decisions
    )
    made = settings.make_scenarios()
    assert len(settings.make_space(made)) > 1
    assert all(int(re.findall(r"\d+$", each.name)[0]) >= 1000 for each in made)


def test_a_run_leaves_a_result_and_goes_on(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["v1", "--agents", "random", "--processes", "1", "--out", str(tmp_path / "out")]
    main(arguments)
    said = capsys.readouterr().out
    assert "left out traced: no file of the trace short was given with --traces: here" in said
    path = tmp_path / "out" / "result.json"
    first = BenchResult.read(path)
    assert (first.bench, first.fingerprint, first.format) == ("v1", TINY.fingerprint, FORMAT)
    assert first.agents == {"random": "rrl-tune", "oracle": "rrl-tune"}
    assert first.score["oracle"] == 1.0 < first.score["random"]
    main([*arguments, "--traces", str(tiny)])
    whole = BenchResult.read(path)
    assert list(whole.scenarios) == ["small", "traced"]
    assert whole.scenarios["small"] == first.scenarios["small"]  # Its times, too: it did not run again.
    assert whole.left_out == {}
    product = 1.0
    for scenario in whole.scenarios.values():
        product *= scenario["figures"]["random"]["ratio_whole_run"]["mean"]
    assert whole.score["random"] == pytest.approx(product**0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND one of v1"),
        (["v1", "--scenarios", "moon"], "unknown scenario 'moon' of the bench v1; known: small, traced"),
        (["v1", "--scenarios", "traced"], "no scenario can run: give --traces FOLDER"),
        (["v1", "--traces", "nowhere"], "there is no folder nowhere"),
        (["v1", "--agents", "alphago"], "unknown agent 'alphago'"),
        (["v1", "--processes", "0"], "--processes must be at least 1"),
    ],
)
def test_wrong_use_is_one_sentence(
    tiny: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path / "out")] if arguments else [])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_an_agents_former_name_is_taken_for_the_present_one(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["v1", "--agents", "rrl", "--out", str(tmp_path / "out")])
    assert set(BenchResult.read(tmp_path / "out" / "result.json").agents) == {"guided", "oracle"}
    assert capsys.readouterr().err.count("agent 'rrl' is taken for 'guided': ") == 1


def test_a_disk_that_is_full_at_the_end_is_a_failure_after_which_the_same_command_goes_on(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: BenchResult, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(BenchResult, "write", full)
    with pytest.raises(SystemExit) as ended:
        main(["v1", "--agents", "random", "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"cannot read or write {tmp_path}/out/result.json: No space left on device; the finished runs are "
        f"kept in {tmp_path}/out, and the same command goes on with them\n"
    )


def test_results_of_other_code_are_told_once_for_all_scenarios(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["v1", "--agents", "random", "--traces", str(tiny), "--out", str(tmp_path / "out")]
    main(arguments)
    assert capsys.readouterr().err == ""
    for path in tmp_path.glob("out/*/runs/random/code.json"):
        path.unlink()
    main(arguments)
    error = capsys.readouterr().err
    assert error.startswith(f"{tmp_path}/out goes on with results of other code than today's: ")
    assert "2 of 2 runs of random (unknown code);" in error
    assert error.count("\n") == 1


def test_an_agent_with_a_failed_run_is_no_part_of_the_result_and_all_scenarios_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "mine", FAILING)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["v1", "--agents", "mine,random", "--traces", str(tiny), "--out", str(out)])
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "2 of 2 runs of mine failed (ValueError: a fault of the agent's own on " in error
    assert "with seed 0 in small and " in error
    assert error.count("\n") == 1
    result = BenchResult.read(out / "result.json")
    assert list(result.scenarios) == ["small", "traced"]
    assert set(result.agents) == set(result.score) == {"random", "oracle"}
    assert all(set(each["figures"]) == {"random", "oracle"} for each in result.scenarios.values())


def test_a_bench_of_whose_agents_none_is_whole_has_no_result(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "oracle", FAILING)
    arguments = ["v1", "--agents", "oracle", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "1 of 1 runs of oracle failed" in error
    assert "; none is left, so no results are written; the finished runs" in error
    path = tmp_path / "out" / "result.json"
    assert not path.exists()
    path.write_text("of an earlier time")
    with pytest.raises(SystemExit):
        main(arguments)
    assert (
        f"no results are written, and those in {path.parent} are of an earlier time"
        in capsys.readouterr().err
    )


def test_an_agent_that_cannot_act_on_a_later_scenario_is_named_before_any_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios = {"batches": TINY.scenarios["small"], "threads": BenchScenario("family:0", decisions=4)}
    run = partial(bench_command._run, VersionedBench("v1", scenarios))
    command = bench_command.COMMANDS["v1"]._replace(run=run)
    monkeypatch.setitem(bench_command.COMMANDS, "v1", command)
    with pytest.raises(SystemExit) as ended:
        main(["v1", "--agents", "aimd", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "agent 'aimd' cannot act here" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*/runs"))


def result(score: float, scenarios: list[str], fingerprint: str = V1.fingerprint) -> BenchResult:
    figures = {
        name: {"mean": score, "low": score, "high": score, "worst": 2 * score}
        for name in ("ratio_whole_run", "share_got_there", "decide_median_ms")
    }
    return BenchResult(
        "v1",
        fingerprint,
        "0.1.0",
        {"mine": "my-agents 1.0"},
        {name: {"figures": {"mine": figures}} for name in scenarios},
        {},
        {"mine": score},
    )


def test_the_leaderboard_ranks_results_of_the_same_scenarios(tmp_path: Path) -> None:
    result(1.5, list(V1.scenarios)).write(tmp_path / "slow.json")
    result(1.2, list(V1.scenarios)).write(tmp_path / "fast.json")
    result(1.1, ["family"]).write(tmp_path / "partial.json")
    page = leaderboard_page(tmp_path)
    places = [page.index(f"(leaderboard/{name}.md)") for name in ("fast", "slow", "partial")]
    assert places == sorted(places)
    assert page.index("### All 14 scenarios") < places[0] < places[1] < page.index("### Without") < places[2]
    result(1.0, ["family"], "another").write(tmp_path / "of_another.json")
    with pytest.raises(ValueError, match="of other scenarios than those of v1"):
        leaderboard_page(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"format": "rrl-bench-result/9"})])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "entry.json").write_text(text)
    with pytest.raises(ValueError, match="is not a result of rrl-bench"):
        leaderboard_page(tmp_path)
