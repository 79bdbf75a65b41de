from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rrl.space import Configuration
from rrl.tuning import keeping, restore
from rrl.tuning.restore import RestorePoint, TargetTaken, ToRestore
from tests.support import CHECKOUT
from tests.support.pipes import line_of, tell

FOUND = {"instances": 1, "max_batch_size": 4}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rrl-tune"


def killed_run() -> None:
    """It tuned localhost:1."""
    code = f"from rrl.tuning.restore import RestorePoint as R; R('localhost:1', 'm').claim({FOUND})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)


def test_a_claim_is_a_file_that_a_clean_end_removes(state_home: Path) -> None:
    point = RestorePoint("localhost:8500", "minilm")
    assert point.to_restore() is None
    point.claim({"instances": 1})
    assert len(list(state_home.iterdir())) == 1
    point.safe({"instances": 2})
    assert len(list(state_home.iterdir())) == 1
    point.release()
    assert list(state_home.iterdir()) == []


def test_two_runs_cannot_tune_one_model_of_one_target(state_home: Path) -> None:
    RestorePoint("localhost:8500", "minilm").claim({"instances": 1})
    with pytest.raises(TargetTaken, match=rf"another rrl-tune \(pid {os.getpid()}\) tunes"):
        RestorePoint("localhost:8500", "minilm").claim({"instances": 4})
    RestorePoint("localhost:8500", "resnet").claim({"instances": 1})
    RestorePoint("localhost:8501", "minilm").claim({"instances": 1})
    assert len(list(state_home.iterdir())) == 3


def test_a_file_that_cannot_be_read_is_not_overwritten(state_home: Path) -> None:
    point = RestorePoint("localhost:8500", "minilm")
    state_home.mkdir()
    point.path.write_text("{")
    with pytest.raises(ValueError, match="by hand, then remove this file"):
        point.claim({"instances": 1})


@pytest.mark.parametrize("address", ["localhost:8500", "127.0.0.1:8500", "[::1]:8500", "LocalHost:8500"])
def test_the_names_of_this_machine_are_one_target(address: str) -> None:
    RestorePoint("localhost:8500", "minilm").claim(FOUND)
    with pytest.raises(TargetTaken, match=f"pid {os.getpid()}"):
        RestorePoint(address, "minilm").claim(FOUND)


def test_other_hosts_ports_and_models_are_other_targets() -> None:
    RestorePoint("localhost:8500", "minilm").claim(FOUND)
    for address, model in (
        ("localhost:8501", "minilm"),
        ("localhost:8500", "resnet"),
        ("box:8500", "minilm"),
    ):
        RestorePoint(address, model).claim(FOUND)


def test_what_a_dead_run_left_is_told_and_a_clean_end_leaves_nothing(state_home: Path) -> None:
    killed_run()
    point = RestorePoint("localhost:1", "m")
    assert point.to_restore() == ToRestore(FOUND, FOUND)
    point.claim(FOUND)
    point.release()
    assert point.to_restore() is None
    assert not list(state_home.iterdir())


def test_of_many_that_start_at_once_one_gets_the_target() -> None:
    code = (
        "import sys\nfrom rrl.tuning.restore import RestorePoint, TargetTaken\n"
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
            cwd=CHECKOUT,
        )
        for _ in range(4)
    ]
    for process in processes:
        line_of(process)
    for process in processes:
        tell(process)
    said = [line_of(process).strip() for process in processes]
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
    assert RestorePoint("localhost:1", "m").to_restore() == ToRestore(FOUND, FOUND)


def test_what_was_put_back_once_is_the_operators_from_then_on(state_home: Path) -> None:
    killed_run()
    point = RestorePoint("localhost:1", "m")
    point.put_back()
    assert point.to_restore() is None
    assert not list(state_home.iterdir())


class Server:
    def __init__(self) -> None:
        self.applied: list[dict[str, int]] = []

    def connect(self, control: bool = True, counters: bool = True) -> None:
        pass

    def configuration(self) -> dict[str, int]:
        return FOUND | {"instances": 2}

    def apply(self, configuration: Configuration) -> None:
        self.applied.append(dict(configuration))

    def was_found_as(self, config_pbtxt: str) -> None:
        pass


def test_the_next_start_puts_back_what_a_killed_run_had_found_and_only_the_next(state_home: Path) -> None:
    killed_run()
    server = Server()
    for _ in range(2):
        keeping.restore(RestorePoint("localhost:1", "m"), server, Console(quiet=True))
    assert server.applied == [FOUND]


def test_what_another_run_claimed_meanwhile_is_not_put_back_again() -> None:
    RestorePoint("localhost:1", "m").claim(FOUND)
    point = RestorePoint("localhost:1", "m")
    with pytest.raises(TargetTaken):
        point.put_back()
    with pytest.raises(TargetTaken):
        point.to_restore()


def test_a_folder_shared_with_another_machine_confuses_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("localhost:1", "box:1"):
        RestorePoint(target, "m").claim(FOUND)
    monkeypatch.setattr(restore, "_machine", lambda: "another")
    assert RestorePoint("localhost:1", "m").to_restore() is None  # that is its own
    with pytest.raises(
        TargetTaken, match=f"an rrl-tune on .* \\(pid {os.getpid()}\\) tunes m on box:1, or was killed"
    ):
        RestorePoint("box:1", "m").to_restore()


def test_a_machine_without_a_name_of_its_own_is_taken_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_machine", lambda: "")
    RestorePoint("box:1", "m").claim(FOUND)
    monkeypatch.setattr(restore, "_machine", lambda: "another")
    with pytest.raises(TargetTaken, match=f"another rrl-tune \\(pid {os.getpid()}\\) tunes m on box:1"):
        RestorePoint("box:1", "m").to_restore()
