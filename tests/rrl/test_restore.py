from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rrl.restore import LeftBehind, RestorePoint, TargetTaken, canonical

FOUND = {"instances": 1, "max_batch_size": 4}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rrl-tune"


@pytest.mark.parametrize("address", ["localhost:8500", "127.0.0.1:8500", "[::1]:8500", "LocalHost:8500"])
def test_the_names_of_this_machine_are_one_target(address: str) -> None:
    RestorePoint("localhost:8500", "minilm").claim(FOUND)
    with pytest.raises(TargetTaken, match=f"pid {os.getpid()}"):
        RestorePoint(address, "minilm").claim(FOUND)


def test_other_hosts_ports_and_models_are_other_targets() -> None:
    assert canonical("GPU-box.example:8500") == "gpu-box.example:8500"
    RestorePoint("localhost:8500", "minilm").claim(FOUND)
    for address, model in (
        ("localhost:8501", "minilm"),
        ("localhost:8500", "resnet"),
        ("box:8500", "minilm"),
    ):
        RestorePoint(address, model).claim(FOUND)


def test_what_a_dead_run_left_is_told_and_a_clean_end_leaves_nothing(state_home: Path) -> None:
    code = f"from rrl.restore import RestorePoint as R; R('localhost:1', 'm').claim({FOUND})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    point = RestorePoint("localhost:1", "m")
    assert point.left_behind() == LeftBehind(FOUND, FOUND)
    point.claim(FOUND)
    point.release()
    assert point.left_behind() is None
    assert not list(state_home.iterdir())


def test_of_many_that_start_at_once_one_gets_the_target() -> None:
    code = (
        "import sys\nfrom rrl.restore import RestorePoint, TargetTaken\n"
        "point = RestorePoint('localhost:1', 'm')\nprint(flush=True)\nsys.stdin.readline()\n"
        f"try: point.claim({FOUND}); print('mine', flush=True)\n"
        "except TargetTaken: print('taken', flush=True)\nsys.stdin.readline()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(4)
    ]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
    said = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate("\n", timeout=20)
    assert sorted(said) == ["mine", "taken", "taken", "taken"]


def test_a_state_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rrl-tune").write_text("a file in the folder's place")
    with pytest.raises(ValueError, match="set XDG_STATE_HOME to a folder that can be written"):
        RestorePoint("localhost:1", "m").claim(FOUND)


def test_a_reused_pid_is_no_living_run(monkeypatch: pytest.MonkeyPatch) -> None:
    RestorePoint("localhost:1", "m").claim(FOUND)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 0.0)
    assert RestorePoint("localhost:1", "m").left_behind() == LeftBehind(FOUND, FOUND)
