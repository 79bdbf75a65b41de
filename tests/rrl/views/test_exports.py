"""The files that a run leaves, also when its target is gone, and anew from its journal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from rich.console import Console
from tritonclient.grpc.model_config_pb2 import ModelConfig

from rrl.command_line import main
from rrl.command_line.exporting import saying_found_is_missing
from rrl.journal import Journal
from rrl.knobs import in_words
from rrl.records import Ending
from rrl.views import results_csv
from rrl.views.exports import export, print_result, write_views
from rrl.views.summary import summarise
from serving_adapter.target import TargetError
from serving_adapter.target.open_inference.kept_configuration import KeptConfiguration
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("run"))


class Gone:
    """A target that does not answer any more."""

    def config_files(self, configuration: Mapping[str, int]) -> Mapping[str, str]:
        raise ConnectionError("the target is away")


def views(folder: Path, run: runs.Run, target: Any = None, ended: bool = True, **summary: Any) -> None:
    write_views(folder, *run, replace(summarise(*run), **summary), target, ended)


def test_the_winner_is_a_pbtxt_an_override_and_a_diff(run: runs.Run, tmp_path: Path) -> None:
    views(tmp_path, run, KeptConfiguration(runs.FOUND))
    kept = summarise(*run).kept
    best = text_format.Parse((tmp_path / "best_config.pbtxt").read_text(), ModelConfig())
    assert (best.instance_group[0].count, best.max_batch_size) == (kept["instances"], kept["max_batch_size"])
    assert (best.backend, best.instance_group[0].kind) == (
        "python",
        ModelConfig().instance_group.add().KIND_CPU,
    )
    override = json.loads((tmp_path / "best_model_config.json").read_text())
    assert override["instance_group"][0]["count"] == kept["instances"]
    assert yaml.safe_load((tmp_path / "best_configuration.yaml").read_text())["configuration"] == kept


def test_what_was_found_is_an_override_beside_it_to_go_back_to(run: runs.Run, tmp_path: Path) -> None:
    kept = KeptConfiguration(runs.FOUND)
    views(tmp_path, run, kept)
    assert summarise(*run).kept != run[0].found
    found = kept.config_files({})
    assert {name: (tmp_path / f"found_{name}").read_text() for name in found} == found
    assert 'href="found_model_config.json"' in (tmp_path / "report.html").read_text()


def patched(text: str, diff: str) -> str:
    """What a unified diff makes of a text, which must be the one that it was made for."""
    before, after, at = text.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            begin = int(line.split()[1].split(",")[0].lstrip("-")) - 1
            after += before[at:begin]
            at = begin
        elif line.startswith("+"):
            after.append(line[1:])
        else:
            assert line[1:] == before[at]
            after += [line[1:]] if line.startswith(" ") else []
            at += 1
    return "".join(after + before[at:])


def test_the_diff_makes_the_winner_of_the_configuration_found(run: runs.Run, tmp_path: Path) -> None:
    views(tmp_path, run, KeptConfiguration(runs.FOUND))
    diff = (tmp_path / "best_config.diff").read_text()
    assert diff.startswith("--- found/config.pbtxt\n+++ best/config.pbtxt\n@@ ")
    assert patched(runs.FOUND, diff) == (tmp_path / "best_config.pbtxt").read_text()


def test_where_nothing_changes_there_is_no_diff_not_even_an_old_one(run: runs.Run, tmp_path: Path) -> None:
    (tmp_path / "best_config.diff").write_text("of a run that was resumed since")
    views(tmp_path, run, KeptConfiguration(runs.FOUND), kept=dict(run[0].start))
    assert not (tmp_path / "best_config.diff").exists()
    assert (tmp_path / "best_config.pbtxt").read_text() == runs.FOUND
    assert "stays as it was found" in (tmp_path / "report.html").read_text()


def test_a_target_that_is_gone_costs_only_what_it_alone_can_tell(run: runs.Run, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        views(tmp_path, run, Gone())
    assert "<h1>" in (tmp_path / "report.html").read_text()
    for name in ("intervals.csv", "reference_table.yaml", "best_configuration.yaml", "latency.png"):
        assert (tmp_path / name).stat().st_size > 0
    assert not (tmp_path / "best_config.pbtxt").exists()


def test_a_configuration_found_that_cannot_be_made_again_costs_its_own_files_alone(
    run: runs.Run, tmp_path: Path
) -> None:
    kept, found = KeptConfiguration(runs.FOUND), run[0].found

    class CannotGoBack:
        def config_files(self, configuration: Mapping[str, int]) -> Mapping[str, str]:
            if configuration == found:
                raise TargetError("model 'minilm' has [two] groups of instances")
            return kept.config_files(configuration)

    said = io.StringIO()
    around = saying_found_is_missing(Console(file=said, width=300))
    write_views(tmp_path, *run, summarise(*run), CannotGoBack(), True, around)
    assert said.getvalue() == (
        "no files of the configuration found, to go back to: model 'minilm' has [two] groups of instances\n"
    )
    diff = (tmp_path / "best_config.diff").read_text()
    assert patched(runs.FOUND, diff) == (tmp_path / "best_config.pbtxt").read_text()
    assert (tmp_path / "best_model_config.json").exists()
    assert not (tmp_path / "found_model_config.json").exists()
    report = (tmp_path / "report.html").read_text()
    assert "best_config.diff" in report
    assert "found_model_config.json" not in report


def test_the_result_names_the_files_the_report_first(run: runs.Run, tmp_path: Path) -> None:
    runs.written(tmp_path, run)
    journal = Journal.open_to_resume(tmp_path)
    summary = export(journal, KeptConfiguration(runs.FOUND), None)
    journal.close()
    with (tmp_path / "said.txt").open("w") as file:
        print_result(Console(file=file, width=200), journal, summary, 0)
    said = (tmp_path / "said.txt").read_text()
    places = [line.split()[-1] for line in said.splitlines() if str(tmp_path) in line]
    assert places[0] == str(tmp_path / "report.html")
    names = {Path(place).name for place in places}
    assert {"intervals.csv", "best_config.pbtxt", "best_config.diff", "found_model_config.json"} <= names
    assert all(Path(place).exists() for place in places)


@pytest.mark.parametrize("named", ["", "journal.jsonl"])
def test_an_earlier_run_is_exported_anew_from_its_journal_alone(
    run: runs.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    header, records = run
    runs.written(tmp_path, (header, records[:9]))
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"kind": "tune", "torn by a kill')
    before = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["--export", str(tmp_path / named)])
    assert ended.value.code == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert "Not finished" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "best_config.pbtxt").exists()
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def exported(folder: Path, run: runs.Run, ending: Ending | None) -> tuple[str, str]:
    """The report and the knobs that are written anew from the journal of a run with such an end."""
    runs.written(folder, run)
    if ending is not None:
        journal = Journal.open_to_resume(folder)
        journal.end(ending)
        journal.close()
    with pytest.raises(SystemExit) as ended:
        main(["--export", str(folder)])
    assert ended.value.code == 0
    return (folder / "report.html").read_text(), (folder / "best_configuration.yaml").read_text()


def test_what_the_journal_says_was_left_is_exported_whatever_had_won(run: runs.Run, tmp_path: Path) -> None:
    start, best = dict(run[0].start), summarise(*run).kept
    assert best != start
    why = "what was to be left could not be put in force (no memory), so what was found was put back"
    report, knobs = exported(tmp_path, run, Ending(start, why))
    assert f"Left in force: <strong>{in_words(start)}</strong>" in report
    assert "<h1>Left as found, the best was not taken</h1>" in report
    assert why[1:] in report
    assert knobs.startswith("# The configuration that this run left in force.\n")
    assert yaml.safe_load(knobs)["configuration"] == start
    report, knobs = exported(tmp_path, run, Ending(best, "it was better in turns"))
    assert f"Left in force: <strong>{in_words(best)}</strong>" in report
    assert yaml.safe_load(knobs)["configuration"] == best


def test_where_the_journal_tells_of_no_end_nothing_is_said_to_be_in_force(
    run: runs.Run, tmp_path: Path
) -> None:
    """The validation is complete and was won, but nothing could be put in force, or the run was killed."""
    report, knobs = exported(tmp_path, run, None)
    best = summarise(*run).kept
    assert f"To use: <strong>{in_words(best)}</strong>" in report
    assert "eft in force" not in report
    assert "left it in force" not in report
    assert "not known to have been left in force" in knobs
    assert yaml.safe_load(knobs)["configuration"] == best


def test_of_a_shortened_journal_no_change_is_made_up_and_all_its_intervals_count(
    run: runs.Run, tmp_path: Path
) -> None:
    header, records = run
    best = summarise(*run).kept
    tried = next(r for r in records if r.kind == "tune" and r.configuration != best)
    newest = next(r for r in records if r.kind == "tune" and r.configuration == best)
    kept = runs.punctual([*records[:3], tried, *[newest] * 6])
    earlier = {"dropped": {"baseline": 1, "tune": 23}, "silent": 0, "kept": 4}
    shortened = replace(header, intervals=30, validation=0, earlier=earlier), kept
    views(tmp_path, shortened, kept=best)
    report = (tmp_path / "report.html").read_text()
    assert "The configuration was never changed." in report
    assert "Ended early" not in report
    with (tmp_path / "intervals.csv").open(encoding="utf-8", newline="") as file:
        assert [row["changed"] for row in csv.DictReader(file)] == [""] * 5 + ["false"] * 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "no journal at"), ("", "is empty"), ('{"journal": "other"}\n', "not a journal of rrl-tune")],
)
def test_what_is_no_run_cannot_be_exported(
    tmp_path: Path, content: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "journal.jsonl").write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["--export", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said


def test_a_summary_for_scripts_tells_what_was_found_and_left(run: runs.Run, tmp_path: Path) -> None:
    views(tmp_path, run)
    summary, told = summarise(*run), json.loads((tmp_path / "summary.json").read_text())
    assert told["left"] == summary.kept
    assert told["in_force"] is True
    assert told["times_lower"] == pytest.approx(summary.gain)
    assert told["start"]["mean_ms"] == pytest.approx(summary.start.mean_ms)
    assert told["exploration"]["intervals"] == summary.exploration.intervals


def test_results_have_the_columns_of_model_analyzer(run: runs.Run, tmp_path: Path) -> None:
    views(tmp_path, run)
    header, records = run
    with (tmp_path / "metrics-model-inference.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("Model", "Batch", "Concurrency", "Model Config Path", "Instance Group", "Max Batch Size"),
        *("Satisfies Constraints", "Throughput (infer/sec)", "p99 Latency (ms)"),
    ]
    measured = {r.number for r in records if r.counted and r.measurement.completions}
    assert len(rows) == len(measured)
    assert f"{header.model}_config_default" in {row["Model Config Path"] for row in rows}
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows)
    assert all(re.fullmatch(r"\d+:CPU", row["Instance Group"]) for row in rows)


def test_an_instance_group_has_no_kind_where_the_server_leaves_it_open(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    results_csv.write(tmp_path / "results.csv", replace(header, found_config_pbtxt=None), records)
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        groups = {row["Instance Group"] for row in csv.DictReader(file)}
    assert groups
    assert all(group.isdigit() for group in groups)
