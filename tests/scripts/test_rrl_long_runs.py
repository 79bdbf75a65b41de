"""RRL's Figs. 12 to 15: who meets whom on which terms, the rules, and the figures in miniature."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from baselines import AGENTS, capes, deeprm
from baselines.comparison import comparison
from baselines.comparison.decisions import run_dtype
from envs.scenarios import expected_costs
from envs.scenarios.families import family_machine
from rrl.agent import Agent, Task, Transition
from rrl.guided.settings import GUIDED
from rrl.region.q_learning import PAPER, RELEASED
from rrl.testing import SPACE, Server
from scripts.figures.bootstrap import BootstrapInterval
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult
from scripts.figures.rrl import contenders, courses, fig12, fig13, fig14, fig15, rules, sensitivity, theorem
from scripts.figures.rrl.contenders import Contender, FirstDecisionGiven, random_start
from scripts.figures.rrl.latency import LatencyFigure, Reduction
from scripts.figures.rrl.long_runs import DYNAMIC, WIKI, LongRunsSetting, Panel, PanelRuns, run_panel
from scripts.figures.rrl.slo import RunsWithLimits
from scripts.figures.rrl.small_world import ALIKE, BIASED, EXACT, SmallWorld, learn
from tests.support.failing_agent import FAILING
from tests.support.in_this_process import InThisProcess

PNG = b"\x89PNG"
LOOKS = {name: replace(each, settings=None) for name, each in contenders.contenders(14.0).items()}


def falling(first: float, then: float, at: int, decisions: int = 500) -> np.ndarray:
    return np.where(np.arange(decisions) < at, first, then)


def panel_runs(latency_ms: Mapping[str, Sequence[np.ndarray]], machines: Sequence[str] = ()) -> PanelRuns:
    """Runs whose expected latencies are these, on machines where 100 ms is the lowest."""
    decisions = {}
    for name, runs in latency_ms.items():
        rows = np.zeros(np.shape(runs), dtype=run_dtype(("instances",)))
        rows["expected_ms"], rows["oracle_ms"], rows["arrival_rate_per_s"] = runs, 100.0, 14.0
        rows["p95_ms"], rows["instances"] = 2 * np.asarray(runs), 2
        decisions[name] = rows
    return PanelRuns(Panel("a-panel", tuple(machines), WIKI, "instances=1,2", requests=5), decisions)


def figure(runs: PanelRuns, reductions: Sequence[Reduction] = ()) -> LatencyFigure:
    looks = {name: LOOKS[name] for name in runs.decisions}
    return LatencyFigure("drawn", "A figure", "A setting.", {(WIKI, "even"): runs}, looks, reductions)


def by_what(claims: Sequence[Claim]) -> dict[str, Claim]:
    return {claim.what: claim for claim in claims}


def test_a_run_has_settled_where_its_median_stays_near_its_own_plateau() -> None:
    wandering = np.where(np.arange(500) // 60 % 2, 2.0, 3.0)
    at_last = falling(9.0, 1.0, 460)
    runs = [falling(9.0, 4.0, 50), np.full(500, 7.0), wandering, at_last]
    assert rules.settled_after(np.stack(runs)).tolist() == [50, 0, np.inf, np.inf]


def test_near_the_oracle_is_another_thing_than_settled() -> None:
    ratios = np.stack([falling(9.0, 1.2, 50), falling(9.0, 1.6, 50)])
    assert rules.near_oracle_after(ratios).tolist() == [50, np.inf]
    assert rules.near_oracle_after(ratios, 2.0).tolist() == [50, 50]


@pytest.mark.parametrize(
    ("reached", "soon", "late", "never"),
    [
        ([40.0, 60.0, 99.0], REPRODUCES, FAILS, FAILS),
        ([150.0, 600.0, 900.0], PARTLY, REPRODUCES, FAILS),
        ([np.inf, np.inf, 10.0], FAILS, PARTLY, REPRODUCES),
        ([40.0, 60.0], NO_CLAIM, NO_CLAIM, NO_CLAIM),
    ],
)
def test_when_runs_settle_is_judged_by_the_median_of_at_least_three(
    reached: list[float], soon: str, late: str, never: str
) -> None:
    times = np.array(reached)
    assert rules.verdict_of_soon(times, 1000) == soon
    assert rules.verdict_of_late(times, 1000) == late
    assert rules.verdict_of_never(times) == never


def test_one_run_has_no_interval() -> None:
    assert rules.after_text(np.array([40.0]), 1000) == "40 (1 of 1 run)"
    assert rules.percent_text(BootstrapInterval(-40.0, -40.0, -40.0), 1) == "-40 %"
    assert rules.percent_text(BootstrapInterval(-40.0, -50.0, -30.0), 3) == "-40 % [-50, -30]"


def test_eight_times_sooner_counts_a_peer_that_never_settles_as_the_whole_run() -> None:
    ours, never = np.array([100.0] * 3), np.array([np.inf] * 3)
    assert rules.times_faster(ours, never, 1000) == ("at least 10.0", REPRODUCES)
    assert rules.times_faster(ours, np.array([500.0] * 3), 1000) == ("5.0", PARTLY)
    assert rules.times_faster(never, ours, 1000)[1] == FAILS


@pytest.mark.parametrize(
    ("change", "verdict"),
    [((-45.0, -50.0, -40.0), REPRODUCES), ((-20.0, -30.0, -10.0), PARTLY), ((-45.0, -80.0, 5.0), FAILS)],
)
def test_a_reduction_is_judged_by_its_size_and_its_interval(
    change: tuple[float, float, float], verdict: str
) -> None:
    assert rules.verdict_of_reduction(-50.0, BootstrapInterval(*change)) == verdict


def test_the_mean_load_lies_well_within_a_level() -> None:
    for ratio in (1.5, 2.0, 3.0):
        levels = contenders.levels(14.0, ratio)
        assert levels.level(14.0) == levels.level(14.0 * 1.1) == levels.level(14.0 / 1.1 ** (ratio / 2))
        assert levels.level(14.0 / ratio**0.26) == levels.level(14.0) - 1


class Told(Agent):
    """It always answers the last configuration, and remembers what came of decisions."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        return SPACE.action(len(SPACE) - 1)

    def update(self, transition: Transition) -> None:
        self.seen.append(SPACE.number_of_action(transition.action))


def test_all_agents_of_a_run_begin_with_the_same_configuration_and_learn_from_it() -> None:
    inner, server, task = Told(), Server(SPACE), Task(SPACE)
    agent = FirstDecisionGiven(inner, task, 3)
    for expected in (3, len(SPACE) - 1):
        observation = server.transition(SPACE.action(0)).observation
        action = agent.act(observation)
        assert SPACE.number_of_action(action) == expected
        agent.update(server.transition(action))
    assert inner.seen == [3, len(SPACE) - 1]
    starts = [random_start(task, seed) for seed in range(30)]
    assert len(set(starts)) > 5
    agents = [LOOKS[name](task, 7) for name in ("guided", "capes", "deeprm", "rrl", "rrl-released")]
    for each in agents:
        assert SPACE.number_of_action(each.act(observation)) == starts[7]
        each.close()
    assert not isinstance(LOOKS["capes-default"](task, 7), FirstDecisionGiven)


def test_a_kept_run_is_of_its_agents_settings_whatever_they_look_like() -> None:
    one = Contender("a", "red", "-", "capes", capes.PAPER)
    assert replace(one, label="b", colour="green").mark == one.mark
    assert replace(one, settings=capes.TUNED).mark != one.mark
    assert replace(one, starts="default").mark != one.mark


def test_a_kept_run_of_the_default_agent_is_of_its_present_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    one = contenders.contenders(14.0)["guided"]
    mark = one.mark
    monkeypatch.setattr("rrl.guided.agent.GUIDED", replace(GUIDED, horizon=2 * GUIDED.horizon))
    assert one.mark != mark


def test_claims_of_latency_over_time() -> None:
    runs = panel_runs(
        {
            "rrl": [falling(400.0, 105.0, 20)] * 3,
            "capes": [np.where(np.arange(500) // 60 % 2, 400.0, 800.0)] * 3,
            "deeprm": [falling(420.0, 100.0, 300)] * 3,
            "capes-default": [np.full(500, 130.0)] * 3,
        }
    )
    claims = by_what(figure(runs).convergence_claims())
    own = claims["decisions until it settles, WiKi: RRL (one level)"]
    assert (own.ours, own.reproduces) == ("20 [20, 20] (3 of 3 runs)", REPRODUCES)
    assert claims["decisions until it settles, WiKi: DeepRM"].reproduces == REPRODUCES
    assert claims["decisions until it settles, WiKi: CAPES"].ours == "not within 500 (0 of 3 runs)"
    assert claims["times sooner than DeepRM and CAPES: RRL (one level)"].ours == "15.0"
    near = claims["decisions until within 25 % of the oracle, WiKi: RRL (one level)"]
    assert (near.ours, near.reproduces) == (
        "20 [20, 20] (3 of 3 runs); within twice 20 [20, 20] (3 of 3 runs)",
        REPRODUCES,
    )
    (reduction,) = figure(runs, [Reduction("even", WIKI, "capes", -79.0)]).reduction_claims()
    whole = 100 * ((20 * 400 + 480 * 105) / 500 / runs.latency_ms("capes").mean() - 1)
    assert reduction.ours.startswith(f"{whole:+.0f} % [{whole:+.0f}, {whole:+.0f}]; second half -83 %")
    assert "; from its own start -10 % [-10, -10], partly" in reduction.ours
    assert reduction.reproduces == REPRODUCES


def test_the_default_agent_is_compared_over_the_whole_run_and_after_decision_30() -> None:
    runs = panel_runs({"guided": [falling(300.0, 100.0, 30, 300)], "deeprm": [np.full(300, 200.0)]})
    (claim,) = figure(runs).default_claims()
    assert claim.ours == "DeepRM -40 % (-50 %), oracle +20 % (+0 %)"
    assert claim.reproduces == NO_CLAIM


def test_latency_over_time_is_drawn_and_tabled(tmp_path: Path) -> None:
    runs = panel_runs({"guided": [np.full(400, 110.0)] * 2, "deeprm-flat": [np.full(400, 300.0)] * 2})
    result = figure(runs).result(tmp_path, 2)
    assert (tmp_path / result.pictures[0]).read_bytes().startswith(PNG)
    curves, summary = (
        list(csv.DictReader((tmp_path / name).read_text().splitlines())) for name in result.tables
    )
    assert [row["decision"] for row in curves[:3]] == ["2", "4", "6"]
    assert len(curves) == 2 * courses.POINTS
    assert (summary[0]["mean_latency_ms"], summary[0]["median_ratio_to_oracle_after_30"]) == ("110", "1.1")


def test_smoothed_takes_the_last_decisions() -> None:
    assert courses.smoothed(np.array([[4.0, 2.0, 0.0, 6.0]]), 2).tolist() == [[4.0, 3.0, 1.0, 3.0]]


def test_violations_are_counted_over_the_run_and_after_the_search() -> None:
    runs = panel_runs({"rrl": [falling(400.0, 100.0, 60)]})
    limited = RunsWithLimits(runs, np.array([300.0]))
    assert [float(percent[0]) for percent in limited.violated_percent("rrl")] == pytest.approx(
        [12.0, 100 / 45]
    )
    assert limited.by_limit("rrl", "p95_ms")[0, -1] == pytest.approx(200 / 300)


@pytest.mark.parametrize(
    ("runs", "over", "later", "verdict"),
    [(3, 4, 0, REPRODUCES), (3, 30, 4, PARTLY), (3, 30, 30, FAILS), (2, 0, 0, NO_CLAIM)],
)
def test_an_slo_is_guaranteed_where_less_than_one_interval_in_a_hundred_is_over(
    runs: int, over: int, later: int, verdict: str
) -> None:
    """`over` of the first 50 decisions of 500, which are the search, and `later` of the others."""
    latency_ms = np.concatenate([falling(400.0, 100.0, over, 50), falling(400.0, 100.0, later, 450)])
    limited = RunsWithLimits(panel_runs({"rrl": [latency_ms] * runs}), np.full(runs, 300.0))
    assert limited.verdict_of_guarantee("rrl") == verdict


def test_a_share_of_the_others_resources_is_judged_as_the_reduction_that_it_is() -> None:
    runs = panel_runs({"rrl": [np.full(9, 100.0)] * 3, "capes": [np.full(9, 100.0)] * 3})
    limited = RunsWithLimits(runs, np.full(3, 300.0))
    for utilisation, verdict in ((0.2, REPRODUCES), (0.6, PARTLY), (0.8, FAILS)):
        runs.decisions["rrl"]["cpu_utilisation"] = utilisation
        runs.decisions["capes"]["cpu_utilisation"] = 0.8
        claim = fig15._share_claim(fig15.RESNET, limited, "rrl", "capes", LOOKS)
        share = f"{utilisation / 0.8:.2f}"
        assert (claim.ours, claim.reproduces) == (f"{share} [{share}, {share}]", verdict)


def test_requests_of_an_idle_server_take_the_service_time() -> None:
    runs = panel_runs({"guided": [np.full(3, 100.0)]}, ["family:1060"])
    runs.decisions["guided"]["arrival_rate_per_s"] = 1e-3
    (latencies,) = RunsWithLimits(runs, np.array([50.0])).request_latencies("guided")
    service_ms = 1e3 * family_machine(1060).table({"instances": 1})[0, 0]
    assert latencies == pytest.approx(np.full(15, service_ms / 50.0))


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LongRunsSetting]:
    """Some decisions of agents that hardly train, in this process, under a short trace."""
    monkeypatch.setattr(comparison, "Workers", InThisProcess)
    monkeypatch.setattr(expected_costs, "STAGES", ((1.0, 0, 5),))
    monkeypatch.setattr(contenders, "CAPES_STEPS", 1)
    for name, settings in (("PAPER", PAPER), ("RELEASED", RELEASED)):
        estimator = replace(settings.estimator, hidden=(4,), max_steps=1)
        monkeypatch.setattr(contenders, name, replace(settings, estimator=estimator))
    trace = tmp_path / "trace.csv"
    trace.write_text("minute,requests\n" + "".join(f"{k},{100 + k % 7}\n" for k in range(80)))
    with threadpool_limits(1):  # as in the processes of a comparison
        yield LongRunsSetting(
            kept=tmp_path / "kept",
            wiki_trace=trace,
            decisions=32,  # the figures tell those after 30 apart
            knobs="instances=1,2,inter_op_threads=1,2",
            small_knobs="instances=1,2,inter_op_threads=1,2,intra_op_threads=2",
            gpu_knobs="instances=1,2,max_batch_size=1,8",
        )


def kept_runs(setting: LongRunsSetting) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in setting.kept.rglob("*-seed-0.npy")}


def is_whole(result: FigureResult, out: Path) -> bool:
    names = {path.name for path in out.iterdir() if path.is_file() and path.suffix in (".png", ".csv")}
    return {*result.pictures, *result.tables} <= names and bool(result.claims)


def test_the_figures_in_miniature_share_their_runs(
    tmp_path: Path, quick: LongRunsSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(fig12, "TRUTHS", {fig12.INCEPTION: "model"})
    first = fig12.run(out, 1, quick)
    assert is_whole(first, out)
    made = kept_runs(quick)
    assert len(made) == 2 * len(LOOKS)
    assert fig12.run(out, 1, quick) == first
    wiki = fig12.run(out, 1, replace(quick, panels=("WiKi:Inception-like",)))
    assert set(wiki.claims) < set(first.claims)
    with pytest.raises(ValueError, match="unknown panel 'WiKi'; known: WiKi:Inception-like, Dynamic"):
        fig12.run(out, 1, replace(quick, panels=("WiKi",)))
    assert is_whole(sensitivity.run(out, 1, quick), out)
    varied = kept_runs(quick)
    assert {path: varied[path] for path in made} == made
    assert len(varied) == len(made) + 9
    assert is_whole(fig14.run(out, 1, quick), out)
    of_fig14 = kept_runs(quick)
    assert len(of_fig14) == len(varied) + len(LOOKS)
    assert is_whole(fig13.run(out, 1, quick), out)
    assert len(kept_runs(quick)) == len(of_fig14) + len(LOOKS)


def test_a_run_that_fails_ends_the_figure_in_a_sentence_that_names_its_folder(
    quick: LongRunsSetting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(AGENTS, "mine", FAILING)
    panel = Panel("a-panel", ("family:1060",), DYNAMIC, "instances=1,2", requests=5)
    agents = {"mine": Contender("mine", "red", "-", "mine", starts="default")}
    with pytest.raises(SystemExit) as ended:
        run_panel(panel, agents, quick)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "failed (ValueError: a fault of the agent's own on family-1060 with seed 0)" in error
    assert f"the finished runs are kept in {quick.kept / 'a-panel' / 'family-1060'}" in error
    assert error.count("\n") == 1


def test_a_figure_of_runs_of_other_code_says_so(
    quick: LongRunsSetting, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = Panel("a-panel", ("family:1060",), DYNAMIC, "instances=1,2", requests=5)
    agents = {"random": Contender("random", "red", "-", "random")}
    run_panel(panel, agents, quick)
    assert capsys.readouterr().err == ""
    for path in quick.kept.glob("*/*/runs/*/code.json"):
        path.unlink()
    run_panel(panel, agents, quick)
    assert "goes on with results of other code than today's: 1 of 1 runs of random" in capsys.readouterr().err


def test_resources_are_judged_by_utilisation(tmp_path: Path, quick: LongRunsSetting) -> None:
    result = fig15.run(tmp_path, 1, quick)
    assert is_whole(result, tmp_path)
    claims = by_what(result.claims)
    used = claims["use and SLO, Inception-like, GPU stand-in: our default"].ours
    assert float(used.split(" %")[0]) <= 100.0
    assert "in force" in used


def test_a_served_model_is_loaded_as_the_family_is(tmp_path: Path, quick: LongRunsSetting) -> None:
    path = tmp_path / "served-deepspeech2.npz"
    family_machine(1060).slower(3.0).save(path)
    panel = fig12.served_panel(DYNAMIC, path, 2, quick)
    machine = family_machine(1060).slower(3.0)
    capacity_per_s = (machine.busy_instances / machine.service_time_s[..., 0]).max()
    assert panel.rate_per_s == pytest.approx(0.45 * capacity_per_s, rel=0.01)
    assert (panel.truth, panel.seeds, panel.machines) == ("two-sizes", 2, (str(path),))
    result = fig12.run_served(tmp_path, 1, replace(quick, machines=(path,)))
    assert {claim.what.split(",")[1] for claim in result.claims if "mean latency" in claim.what} == {
        " served-deepspeech2"
    }


def test_an_agent_of_the_figures_has_the_settings_that_are_said() -> None:
    agents = contenders.contenders(14.0)
    assert agents["rrl"].settings.load_levels is None
    assert agents["rrl-levels"].settings.load_levels.ratio == 2.0
    assert agents["rrl"].settings.discount == agents["rrl-levels"].settings.discount == 0.0
    assert agents["capes"].settings.training_steps == 64
    assert agents["deeprm"].settings == replace(deeprm.PAPER, outputs="knobs")
    assert agents["deeprm-flat"].settings == deeprm.PAPER


@pytest.fixture(scope="module")
def world() -> SmallWorld:
    return SmallWorld.of(family_machine(1060), 8)


def test_the_optimal_q_fulfils_bellmans_equation(world: SmallWorld) -> None:
    q = world.optimal_q(0.8)
    assert q == pytest.approx(world.expected_ms + 0.8 * (world.transition @ q.min(axis=1))[:, None])
    assert world.optimal_q(0.0) == pytest.approx(world.expected_ms)


def test_lemma_42_holds_and_the_course_of_real_latencies_approaches_the_optimum(world: SmallWorld) -> None:
    points, regions = (learn(world, radius, 0.5, 3000, 3) for radius in (0, 1))
    assert points.region_size == 1.0
    assert points.apart[ALIKE].max() == points.apart[BIASED].max() == 0.0
    for estimates in (ALIKE, BIASED):
        bound = regions.error_bound[estimates] / (1 - 0.5)
        assert 0.0 < regions.apart[estimates].max() <= bound * (1 + theorem.ROUNDING)
    for course in (points, regions):
        assert course.gap[EXACT][:, -1].mean() < 0.5 * course.gap[EXACT][:, 0].mean()
    assert theorem.times_sooner(points, regions) > 1.5


def test_the_theorem_in_miniature(tmp_path: Path) -> None:
    result = theorem.run(tmp_path, 2, theorem.TheoremSetting((0, 1), (0.0, 0.5), 300, 3))
    assert {path.name for path in tmp_path.iterdir()} == {*result.pictures, *result.tables}
    assert len(result.claims) == 4 + 2 + 1
    lemma = [claim for claim in result.claims if claim.what.startswith("largest distance from Q̂")]
    assert {claim.reproduces for claim in lemma} == {REPRODUCES}
