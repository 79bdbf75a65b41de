"""`scripts/reproduce`: its figures, the tables of docs/results, and what the figures compute."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from baselines.comparison.comparison import BENCH_FILE
from baselines.comparison.decisions import FILE_NAME, labelled, run_dtype, write_decisions
from scripts.figures import results
from scripts.figures.__main__ import FIGURES, HEAD_TO_HEAD, LEARNER_PAGE, PAGES, REACH, TRITON_PAGE, main
from scripts.figures.bootstrap import bootstrap_change, bootstrap_mean, bootstrap_median
from scripts.figures.reach import reach_table
from scripts.figures.result import NO_CLAIM, PARTLY, Claim, FigureResult
from scripts.figures.rrl import fig11
from tests.support import CHECKOUT
from tests.support.in_this_process import InThisProcess

PNG = b"\x89PNG"


def runs(expected_ms: Mapping[str, np.ndarray], oracle_ms: float = 100.0) -> np.ndarray:
    """Decisions of agents with these (runs, decisions) expected latencies, each run on its own machine."""
    tables = []
    for agent, latencies in expected_ms.items():
        for k, latency_ms in enumerate(latencies):
            rows = np.zeros(len(latency_ms), dtype=run_dtype(("instances",)))
            rows["decision"], rows["arrival_rate_per_s"] = np.arange(len(rows)), 14.0
            rows["instances"], rows["decide_ms"] = 2, 4.0
            rows["expected_ms"], rows["oracle_ms"] = latency_ms, oracle_ms
            rows["p95_ms"], rows["best_p95_ms"] = 2 * latency_ms, 2 * oracle_ms
            tables.append(labelled(rows, agent, f"machine-{k}", 0, 20))
    return np.concatenate(tables)


def falling(first_ms: float, then_ms: float, at: int, decisions: int = 60) -> np.ndarray:
    return np.where(np.arange(decisions) < at, first_ms, then_ms)


@pytest.fixture
def result() -> FigureResult:
    claims = (Claim("latency", "-50 %", "-40 % [-45, -35]", PARTLY),)
    return FigureResult("Fig. 0", "Two machines.", 3, claims, ("fig0.png",), ("fig0.csv",))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_module(name: str) -> None:
    module, _, function = FIGURES[name].run.partition(":")
    source = CHECKOUT / "scripts" / "figures" / f"{module.replace('.', '/')}.py"
    assert re.search(rf"^def {function}\(\s*out: Path,\s*seeds: int", source.read_text("utf-8"), re.MULTILINE)


def test_list_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(FIGURES)


@pytest.mark.parametrize("arguments", [["fig-99"], []])
def test_unknown_figure_lists_the_known(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(message.splitlines()) == 1
    assert all(name in message for name in FIGURES)


def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["serf-table2", "--out", str(tmp_path / "file" / "out")])
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert "cannot read or write" in message
    assert len(message.splitlines()) == 1


def test_no_seeds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rrl-fig11", "--seeds", "0"])
    assert "--seeds must be at least 1" in capsys.readouterr().err


def test_options_of_long_runs_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rrl-fig11", "--wiki-trace", "trace.csv"])
    message = capsys.readouterr().err
    assert "belong to rrl-fig12, rrl-fig12-small," in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", [*FIGURES, REACH, HEAD_TO_HEAD])
def test_a_page_has_a_place_for_every_table(name: str) -> None:
    of_others = {REACH: LEARNER_PAGE, HEAD_TO_HEAD: TRITON_PAGE}
    page = of_others.get(name) or PAGES[name.partition("-")[0]]
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    assert "written" in results.with_table(text, name, "written")


def test_result_survives_its_file(tmp_path: Path, result: FigureResult) -> None:
    result.save(tmp_path / "fig0.json")
    assert FigureResult.load(tmp_path / "fig0.json") == result


def test_a_damaged_result_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "fig0.json").write_text('{"title": "Fig. 0"}')
    with pytest.raises(ValueError, match="run the figure again"):
        FigureResult.load(tmp_path / "fig0.json")


def test_results_writes_only_between_the_markers(tmp_path: Path, result: FigureResult) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table: fig0 -->\nold\n<!-- end -->\nafter\n<!-- table: fig1 -->\n<!-- end -->\n"
    )
    result.save(tmp_path / "fig0.json")
    assert results.update(page, results.figures(page, tmp_path, ("fig0", "fig1"))) == ["fig0"]
    text = page.read_text()
    assert text.startswith("before\n<!-- table: fig0 -->\nTwo machines. 3 seeds.")
    assert text.endswith("\n<!-- end -->\nafter\n<!-- table: fig1 -->\n<!-- end -->\n")
    assert "| latency | -50 % | -40 % [-45, -35] | partly |" in text
    assert "![Fig. 0](fig0.png)" in text
    assert "old" not in text


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for the table 'fig0'"):
        results.with_table("no markers", "fig0", "a table")


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ValueError, match="verdict"):
        Claim("latency", "-50 %", "-40 %", "perhaps")


def test_bootstrap_of_equal_values_is_a_point() -> None:
    assert bootstrap_mean(np.full(10, 3.0)) == (3.0, 3.0, 3.0)
    assert bootstrap_change(np.full(10, 1.0), np.full(10, 4.0)) == (-0.75, -0.75, -0.75)


def test_bootstrap_keeps_pairs_together() -> None:
    theirs = np.array([1.0, 10.0, 100.0, 1000.0])
    assert bootstrap_change(theirs / 2, theirs) == pytest.approx((-0.5, -0.5, -0.5))


def test_the_median_of_mostly_never_is_never() -> None:
    assert bootstrap_median(np.array([5.0, np.inf, np.inf])).estimate == math.inf
    assert bootstrap_median(np.array([5.0, 7.0, np.inf])).estimate == 7.0


def test_q_has_converged_when_it_stays_near_its_end() -> None:
    distance = np.array([1.0, 0.4, 0.24, 0.4] + [0.2] * 36)
    assert fig11.converged_after(distance) == 4
    assert fig11.converged_after(np.full(10, 0.3)) == 0


def test_a_figure_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fig11, "Workers", InThisProcess)
    setting = fig11.Figure11Setting(
        radii=(0, 1), decisions=(12, 8), knobs="instances=1,2,inter_op_threads=1,2"
    )
    result = fig11.run(tmp_path, 1, setting)
    assert {path.name for path in tmp_path.iterdir()} == {*result.pictures, *result.tables}
    assert (tmp_path / "rrl-fig11.png").read_bytes().startswith(PNG)
    with (tmp_path / "rrl-fig11.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["radius"] for row in rows] == ["0", "1"]
    assert all(0 <= float(row["distance"]) <= 1 for row in rows)
    assert [claim.reproduces for claim in result.claims].count(NO_CLAIM) == 1


def compared(folder: Path, truth: str, expected_ms: Mapping[str, np.ndarray]) -> Path:
    """A folder as `rrl-compare` leaves it."""
    folder.mkdir()
    (folder / BENCH_FILE).write_text(json.dumps({"workload": "wiki", "truth": truth}))
    write_decisions(folder / FILE_NAME, runs(expected_ms))
    return folder


def test_the_table_of_reach(tmp_path: Path) -> None:
    near, late = falling(500.0, 101.0, 4), falling(500.0, 101.0, 10)
    late_look = np.where(np.arange(60) == 54, 130.0, near)
    ours = np.stack([near] * 18 + [late_look, late])
    others = np.full((20, 60), 1000.0)
    on_model = compared(
        tmp_path / "wiki", "model", {"guided": ours, "capes": others, "oracle": np.full((20, 60), 100.0)}
    )
    elsewhere = compared(tmp_path / "ps", "processor-sharing", {"guided": np.full((2, 60), 120.0)})
    table = reach_table([on_model, elsewhere]).splitlines()
    assert table[2].startswith(
        "| decisions until within 10 % of the oracle, and staying (running median of 5): wiki, 60 decisions |"
    )
    assert "| by decision 10 on 19; median 4, worst 10, 0 stuck. Until" in table[2]
    assert table[2].endswith("last single decision outside: by decision 10 on 18, median 4, worst 55 | yes |")
    assert "| median 1.010, worst 1.020 | yes |" in table[3]
    assert "by that of capes: wiki, 60 decisions | the median at most 1/30 |" in table[4]
    assert table[4].endswith("| median 1/32.6, worst 1/13.3 | yes |")
    assert table[5].endswith("| at most twice the oracle's share | 7.17 % against 0.00 % | no |")
    assert table[6].endswith("| the worst at most 1.10 | median 1.200, worst 1.200 | no |")
    assert table[7].endswith("| median 4.0 ms, p99 4.0 ms | yes |")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder of rrl-compare"):
        reach_table([tmp_path])
