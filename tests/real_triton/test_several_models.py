"""Several models of one Triton, tuned in turn under one budget of cores."""

import subprocess
import sys
from contextlib import closing

import pytest

from rrl import journal
from rrl.command_line import main
from rrl.command_line.opening.core_budget import cores_used
from serving_adapter.model_configuration import knob_values
from serving_adapter.target import OpenInferenceTarget
from tests.support import CHECKOUT

KNOBS = "instances=1,2,4"


@pytest.fixture
def both(triton, serve):
    """Two models of the server, found and left in the same configurations."""
    views = [serve(triton, "sleep"), serve(triton, "fragile")]
    found = [view.config() for view in views]
    yield views
    for view, config in zip(views, found, strict=True):
        view.load(config)


def test_each_is_tuned_within_what_the_other_leaves_of_the_budget(both, load, tmp_path):
    sleep, _ = both
    out = tmp_path / "run"
    with load(sleep), load(both[1]), pytest.raises(SystemExit) as ended:
        main(
            [
                *("--target", sleep.address, "--metrics-url", sleep.metrics_url, "--model", "sleep,fragile"),
                *("--cores", "3", "--knobs", KNOBS, "--agent", "sweep", "--intervals", "3"),
                *("--interval-s", "0.5", "--settle-s", "0.1", "--out", str(out)),
            ]
        )
    assert ended.value.code == 0
    shares = []
    for name in ("sleep", "fragile"):
        header, records = journal.read(out / name)
        assert header.model == name
        assert header.limits is not None
        shares.append(header.limits["cores"])
        assert all(cores_used(record.configuration) <= shares[-1] for record in records)
        assert not any(record.decision == "refused" for record in records)  # the sweep does not ask for 4
    assert shares[0] == 2  # the other was found with one
    assert sum(cores_used(knob_values(view.config())) for view in both) <= 3


def test_what_a_killed_run_left_of_any_is_put_back_before_the_first_is_tuned(
    both, load, tmp_path, monkeypatch, capsys
):
    """The first may be tuned for hours, with what was explored of the second in force."""
    sleep, fragile = both
    found = knob_values(fragile.config())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    claims = (
        f"from rrl.tuning.restore import RestorePoint as R; point = R({sleep.address!r}, 'fragile')\n"
        f"point.claim({found}); point.changing({found}, {found | {'instances': 2}})"
    )
    subprocess.run([sys.executable, "-c", claims], check=True, cwd=CHECKOUT)
    target = OpenInferenceTarget(sleep.address, "fragile", sleep.metrics_url)
    with closing(target):
        target.connect()
        target.apply({"instances": 2})
    out = tmp_path / "run"
    with load(sleep), load(fragile), pytest.raises(SystemExit) as ended:
        main(
            [
                *("--target", sleep.address, "--metrics-url", sleep.metrics_url, "--model", "sleep,fragile"),
                *("--knobs", "instances=1,2", "--agent", "sweep", "--intervals", "2"),
                *("--interval-s", "0.5", "--settle-s", "0.1", "--out", str(out)),
            ]
        )
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.index("an earlier run did not end cleanly here") < said.index("sleep: 1 of 2 models")
    (put_back,) = [
        line for line in (out / "fragile" / "changes.log").read_text().splitlines() if "killed" in line
    ]
    assert "instances 2 -> 1" in put_back


@pytest.mark.parametrize(
    ("second", "arguments", "says"),
    [
        ("missing", (), "model 'missing' is not there"),
        ("conversation", ("--knobs", "max_batch_size=1,2"), "has no knob max_batch_size; it has instances"),
    ],
)
def test_all_are_looked_at_before_the_first_is_changed(both, tmp_path, capsys, second, arguments, says):
    sleep, _ = both
    out = tmp_path / "run"
    target = ("--target", sleep.address, "--metrics-url", sleep.metrics_url)
    with pytest.raises(SystemExit) as ended:
        main([*target, "--model", f"sleep,{second}", "--out", str(out), *arguments])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "sleep,sleep"], "must name models once each"),
        (["--model", "sleep,"], "must name models once each"),
        (["--model", "sleep,fragile", "--resume", "x"], "name one --model"),
        (["--model", "sleep", "--cores", "0"], "--cores must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--target", "localhost:1", *arguments])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
