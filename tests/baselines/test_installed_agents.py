"""An agent of another package, installed as the page says, is one that the commands take by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baselines.installed_agents import installed_agents
from tests.support import CHECKOUT
from tests.support.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "add-an-agent.md"
ASK = """
import json
from baselines import AGENTS, make_agent, markdown_table
from baselines.agents import origin
from rrl import ConfigurationSpace, Task
from rrl.testing import check_agent

agent = make_agent("stay-or-step", Task(ConfigurationSpace.parse("instances=1:2")), seed=3)
check_agent(lambda task, seed: make_agent("stay-or-step", task, seed))
try:
    make_agent("absent", Task(ConfigurationSpace.parse("instances=1:2")))
except ValueError as error:
    refused = str(error)
print(json.dumps({
    "class": type(agent).__name__,
    "origins": [origin("stay-or-step"), origin("guided")],
    "documented": "stay-or-step" in markdown_table(),
    "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages, with one that is built of what the page shows, and a broken one."""
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    texts = {block.language: block.text for block in reversed(blocks(PAGE))}  # The first of each language.
    (project / "stay_or_step.py").write_text(texts["python"], encoding="utf-8")
    (project / "pyproject.toml").write_text(texts["toml"], encoding="utf-8")
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", site, project], check=True)
    broken = site / "broken-2.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 2.0\n", encoding="utf-8")
    entries = "[rrl_tune.agents]\nabsent = nowhere.to_be:Found\nguided = nowhere.to_be:Found\n"
    (broken / "entry_points.txt").write_text(entries, encoding="utf-8")
    return site


@pytest.fixture
def environment(site: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(site)])}


def test_it_is_made_by_its_name_and_ours_stay_ours(environment: dict[str, str], tmp_path: Path) -> None:
    said = subprocess.check_output([sys.executable, "-c", ASK], env=environment, cwd=tmp_path, text=True)
    assert json.loads(said) == {
        "class": "StayOrStep",
        "origins": ["stay-or-step 1.0", "rrl-tune"],
        "documented": False,
        "refused": "nowhere.to_be:Found of broken 2.0 cannot be imported: No module named 'nowhere'",
    }


def test_a_comparison_runs_it_in_its_workers(environment: dict[str, str], tmp_path: Path) -> None:
    small = ["--machine", "profiled:0", "--truth", "batches", "--knobs", "instances=1:2,max_batch_size=1,2"]
    command = [sys.executable, "-m", "baselines.comparison.command_line", *small, "--decisions", "3"]
    command += ["--agents", "stay-or-step", "--processes", "1", "--out", str(tmp_path)]
    said = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "runs" / "stay-or-step" / "machine-000-seed-0.npy").is_file()


def test_without_such_a_package_there_are_none() -> None:
    assert installed_agents() == {}
