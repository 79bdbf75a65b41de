"""`scripts/reproduce`: its figures, the tables of docs/results, and what the figures compute."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pytest

from scripts.figures import results
from scripts.figures.__main__ import FIGURES, HEAD_TO_HEAD, PAGES, TRITON_PAGE, main
from scripts.figures.bootstrap import bootstrap_change, bootstrap_mean, bootstrap_median
from scripts.figures.result import NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult
from scripts.figures.rrl import fig11
from tests.support import CHECKOUT
from tests.support.in_this_process import InThisProcess

PNG = b"\x89PNG"


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


@pytest.mark.parametrize("name", [*FIGURES, HEAD_TO_HEAD])
def test_a_page_has_a_place_for_every_table(name: str) -> None:
    page = TRITON_PAGE if name == HEAD_TO_HEAD else PAGES[name.partition("-")[0]]
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


def test_each_radius_with_a_factor_in_the_paper_is_judged_by_it() -> None:
    times = {0: np.full(3, 60.0), 1: np.full(3, 15.0), 2: np.full(3, 10.0)}
    of_runs = {radius: np.full(3, 0.5) for radius in times}
    claims = {claim.paper: claim for claim in fig11._claims(times, of_runs, of_runs)}
    assert (claims["5"].ours, claims["5"].reproduces) == ("4.0 [4.0, 4.0]", REPRODUCES)
    assert (claims["roughly 10"].ours, claims["roughly 10"].reproduces) == ("6.0 [6.0, 6.0]", PARTLY)


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
