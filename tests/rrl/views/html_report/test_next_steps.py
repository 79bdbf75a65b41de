"""The page says how to run again, and how to apply what was found."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rrl.command_line.opening.earlier import as_before
from rrl.command_line.options.options import TuneOptions
from rrl.records import Header
from rrl.views.exports import write_views
from rrl.views.html_report import next_steps, page
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import summarise
from serving_adapter.flags.parsing import parse
from serving_adapter.target.open_inference.kept_configuration import KeptConfiguration
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import section, text


def test_the_command_starts_the_same_run_again(good: runs.Run) -> None:
    header: Header = replace(
        good[0],
        objective="strict-slo",
        slo_p95_ms=50.0,
        metrics_url="http://localhost:8002/metrics",
        limits={
            "max_changes_per_hour": 4,
            "change_window": ["Mon-Fri 22:00-06:00"],
            "forbid": ["max_batch_size"],
        },
    )
    arguments = shlex.split(next_steps.command(header))
    assert arguments[0] == "rrl-tune"
    options = parse(TuneOptions, arguments[1:])
    assert options == as_before(TuneOptions(resume=None), header)
    secret = replace(header, metrics_url="http://me:secret@localhost:8002/metrics")
    assert next_steps.command(secret) == next_steps.command(header)
    embedded = replace(
        good[0], target="embedded", load={"rate": 40.0, "model": None, "arrivals": "wiki", "sizes": "fixed:8"}
    )
    options = parse(TuneOptions, shlex.split(next_steps.command(embedded))[1:])
    assert (options.target, options.rate, options.arrivals, options.sizes) == (None, 40.0, "wiki", "fixed:8")


def test_the_configuration_is_a_diff_with_how_to_apply_it(good: runs.Run, tmp_path: Path) -> None:
    header, records = good
    summary = summarise(header, records)
    write_views(tmp_path, header, records, summary, KeptConfiguration(runs.FOUND), ended=True)
    html = (tmp_path / "report.html").read_text()
    diff = (tmp_path / "best_config.diff").read_text()
    root = page.page(RunView(header, records, summary, True), diff, [p.name for p in tmp_path.iterdir()])
    pre = text(section(root, "configuration").find(".//pre"))
    assert pre == re.sub(r"\s+", " ", diff).strip()
    assert [text(e) for e in section(root, "configuration").iter("del")] == [
        re.sub(r"\s+", " ", line).strip() for line in diff.splitlines() if re.match(r"-[^-]", line)
    ]
    assert "cp best_config.pbtxt MODEL_REPOSITORY/minilm/config.pbtxt" in html
    assert 'InferenceServerClient("localhost:8001")' in html
    links = [a.get("href", "") for a in section(root, "files").iter("a")]
    assert {"intervals.csv", "reference_table.yaml", "best_config.pbtxt", "best_config.diff"} <= set(links)
    assert all((tmp_path / link).exists() for link in links)


def test_an_application_of_ray_serve_is_deployed_again(good: runs.Run, tmp_path: Path) -> None:
    class Application:
        def config_files(self, configuration: Mapping[str, int]) -> Mapping[str, str]:
            return {"serve_config.yaml": "applications: []\n"}

    header = replace(good[0], target="ray://localhost:8265", found_config_pbtxt="applications: [{}]\n")
    summary = summarise(header, good[1])
    write_views(tmp_path, header, good[1], summary, Application(), ended=True)
    html = (tmp_path / "report.html").read_text()
    assert "serve deploy --address http://localhost:8265 best_serve_config.yaml" in html
    assert "+++ best/serve_config.yaml" in (tmp_path / "best_config.diff").read_text()
    assert 'href="best_serve_config.yaml"' in html
