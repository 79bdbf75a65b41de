"""What a killed run left is put back only where it is that run's; and one run at a time has a target."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rrl.space import Configuration
from rrl.tuning import keeping, restore, state_file
from rrl.tuning.restore import RestorePoint, TargetTaken, ToRestore
from rrl.tuning.state_file import ServerIdentity
from serving_adapter.model_configuration import edited, knob_values, parse
from serving_adapter.target import LeaseTaken
from serving_adapter.target.open_inference.change import stages
from tests.support import CHECKOUT
from tests.support.pipes import line_of, tell
from tests.support.servers.fake_triton import CONFIG

FOUND = {"instances": 1, "max_batch_size": 4}
EXPLORED = {"instances": 4, "max_batch_size": 8}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rrl-tune"


@pytest.fixture
def model() -> str:
    """A model of this test's own, as the claims of all tests on this machine know of each other."""
    return f"m{secrets.token_hex(8)}"


def a_run(target: str, model: str, then: str) -> list[str]:
    """A run in a process of its own, which has claimed a target."""
    claim = f"point = RestorePoint({target!r}, {model!r}, Server()); point.claim({FOUND})"
    server = "class Server:\n identity = lambda self: Id('rrl-serve 1', 7.0)\n lease_to = lambda *given: None"
    imports = (
        "import sys; from rrl.tuning.restore import RestorePoint, TargetTaken\n"
        "from rrl.tuning.state_file import ServerIdentity as Id"
    )
    return [sys.executable, "-c", "\n".join((imports, server, claim, then))]


def killed_run(model: str, target: str = "localhost:1", changes: str = "") -> None:
    subprocess.run(a_run(target, model, changes), check=True, cwd=CHECKOUT)


def test_a_claim_is_a_file_that_a_clean_end_removes(state_home: Path, model: str) -> None:
    point = RestorePoint("localhost:8500", model)
    assert point.to_restore() is None
    point.claim({"instances": 1})
    assert {path.suffix for path in state_home.iterdir()} == {".json", ".lock"}
    point.safe({"instances": 2})
    point.changing({"instances": 1}, {"instances": 2})
    assert {path.suffix for path in state_home.iterdir()} == {".json", ".lock"}
    assert point.path.stat().st_mode & 0o077 == 0
    point.release()
    assert list(state_home.iterdir()) == []


def test_two_runs_cannot_tune_one_model_of_one_target(model: str) -> None:
    held = [RestorePoint("localhost:8500", model)]
    held[0].claim({"instances": 1})
    with pytest.raises(TargetTaken, match=rf"another rrl-tune \(pid {os.getpid()}\) tunes"):
        RestorePoint("localhost:8500", model).claim({"instances": 4})
    for target, name in (
        ("localhost:8500", f"{model}x"),
        ("localhost:8501", model),
        ("box.invalid:8500", model),
    ):
        held.append(RestorePoint(target, name))
        held[-1].claim({"instances": 1})


def test_a_file_that_cannot_be_read_is_not_overwritten(state_home: Path, model: str) -> None:
    point = RestorePoint("localhost:8500", model)
    state_home.mkdir()
    for text in ("{", "[]", "{}", '{"target": "t", "found": {"instances": "many"}}'):
        point.path.write_text(text)
        with pytest.raises(ValueError, match="by hand, then remove this file"):
            point.claim({"instances": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"found": [1]},
        {"names": 5},
        {"names": [["a"]]},
        {"changes": "ab"},
        {"changes": [[{"instances": 1}]]},
        {"config_pbtxt": 5},
        {"server_started_s": "yesterday"},
    ],
)
def test_a_file_of_other_values_is_one_sentence_and_in_nobody_elses_way(
    wrong: dict[str, Any], state_home: Path, model: str
) -> None:
    point = RestorePoint("localhost:8500", model)
    state_home.mkdir()
    found = {"instances": 1}
    right = {"target": "localhost:8500", "model": model, "pid": 1, "found": found, "best": found}
    for path in (point.path, state_home / "any.json"):
        path.write_text(json.dumps(right | wrong))
    with pytest.raises(ValueError, match="by hand, then remove this file"):
        point.to_restore()
    (state_home / "deep.json").write_text("[" * 100_000)
    assert RestorePoint("localhost:8501", model).to_restore() is None


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8500", "[::1]:8500", "LocalHost:8500", "0.0.0.0:8500", f"{socket.gethostname()}:8500"],
)
def test_the_names_of_this_machine_are_one_target(address: str, model: str) -> None:
    first = RestorePoint("localhost:8500", model)
    first.claim(FOUND)
    with pytest.raises(TargetTaken, match=f"pid {os.getpid()}"):
        RestorePoint(address, model).claim(FOUND)
    elsewhere = RestorePoint("ray://localhost:8500", model)  # what speaks otherwise is another server
    elsewhere.claim(FOUND)
    with pytest.raises(TargetTaken, match=f"pid {os.getpid()}"):
        RestorePoint(f"ray://{address}", model).claim(FOUND)


@pytest.mark.skipif(sys.platform != "linux", reason="a folder of one's own hides the claim elsewhere")
def test_a_run_of_another_user_or_home_is_seen(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RestorePoint("localhost:8500", model)
    first.claim(FOUND)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    second = RestorePoint("127.0.0.1:8500", model)
    with pytest.raises(TargetTaken, match="another rrl-tune or rrl-profile changes"):
        second.to_restore()
    with pytest.raises(TargetTaken, match="another rrl-tune or rrl-profile changes"):
        second.claim(FOUND)
    first.release()
    second.claim(FOUND)


@pytest.mark.skipif(sys.platform != "linux", reason="a folder of one's own hides the claim elsewhere")
@pytest.mark.parametrize("target", ["localhost:8500", "box.invalid:8500"])
def test_a_container_that_shares_only_the_network_is_seen(
    model: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RestorePoint(target, model).claim(FOUND)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of the container"))
    monkeypatch.setattr(socket, "gethostname", lambda: "0123456789ab")
    for module in (restore, state_file):
        monkeypatch.setattr(module, "machine", lambda: "of the container")
    with pytest.raises(TargetTaken, match="another rrl-tune or rrl-profile changes"):
        RestorePoint(target, model).claim(FOUND)


def test_what_a_dead_run_left_is_told_under_every_name_and_a_clean_end_leaves_nothing(
    state_home: Path, model: str
) -> None:
    killed_run(model)
    point = RestorePoint("127.0.0.1:1", model)
    assert point.to_restore() == ToRestore(FOUND, FOUND)
    point.claim(FOUND)
    point.release()
    assert point.to_restore() is None
    assert not list(state_home.iterdir())


def test_of_many_that_start_at_once_one_gets_the_target(model: str) -> None:
    code = (
        "import sys\nfrom rrl.tuning.restore import RestorePoint, TargetTaken\n"
        f"point = RestorePoint('localhost:1', {model!r})\nprint(flush=True)\nsys.stdin.readline()\n"
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


def test_a_run_that_lives_is_seen_whatever_its_pid_and_clock_say(model: str) -> None:
    """In another container its pid is another's, and a step of the clock moves when it started."""
    running = subprocess.Popen(
        a_run("localhost:1", model, "print(flush=True); sys.stdin.read()"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    line_of(running)
    point = RestorePoint("localhost:1", model)
    state = json.loads(point.path.read_text())
    point.path.write_text(json.dumps(state | {"pid": 2**22 + 1}))
    with pytest.raises(TargetTaken, match="another rrl-tune"):
        point.to_restore()
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=20)
    assert point.to_restore() is not None


def test_nothing_of_another_runs_claim_is_overwritten_or_removed(model: str) -> None:
    first = RestorePoint("localhost:1", model)
    first.claim(FOUND)
    first.path.write_text(json.dumps(json.loads(first.path.read_text()) | {"owner": "another"}))
    theirs = first.path.read_text()
    first.safe(EXPLORED)
    first.changing(FOUND, EXPLORED)
    first.release()
    assert first.path.read_text() == theirs


def test_a_state_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, model: str) -> None:
    (tmp_path / "rrl-tune").write_text("a file in the folder's place")
    assert RestorePoint("localhost:1", model).to_restore() is None  # as an observer need not write
    with pytest.raises(ValueError, match="set XDG_STATE_HOME to a folder of this machine that can be"):
        RestorePoint("localhost:1", model).claim(FOUND)


def test_a_user_without_a_home_is_told_where_to_keep_the_state(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever a container is started as."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_007)
    with pytest.raises(ValueError, match=r"this user has no home .* set XDG_STATE_HOME to a folder"):
        RestorePoint("localhost:1", model)


def test_no_file_is_opened_through_a_link_in_its_place(state_home: Path, tmp_path: Path, model: str) -> None:
    point = RestorePoint("localhost:1", model)
    state_home.mkdir()
    (tmp_path / "precious").write_text("precious")
    for suffix in (".lock", ".json"):
        point.path.with_suffix(suffix).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match=r"precious|by hand|cannot write"):
        point.claim(FOUND)
    assert (tmp_path / "precious").read_text() == "precious"


def test_what_was_put_back_once_is_the_operators_from_then_on(state_home: Path, model: str) -> None:
    killed_run(model)
    point = RestorePoint("localhost:1", model)
    point.forget()
    assert point.to_restore() is None
    assert not list(state_home.iterdir())


class Server:
    """What is in force on it, and what was put in force."""

    def __init__(self, in_force: dict[str, int]) -> None:
        self.in_force = in_force
        self.applied: list[dict[str, int]] = []

    def connect(self, control: bool = True, counters: bool = True) -> None:
        pass

    def configuration(self) -> dict[str, int]:
        return self.in_force

    def apply(self, configuration: Configuration) -> None:
        self.applied.append(dict(configuration))
        self.in_force = dict(configuration)

    def restore(self, found: Configuration, text: str = "") -> None:
        self.apply(found)


SAME = ServerIdentity("rrl-serve 1", 7.0)
ONE_CHANGE = f"point.changing({FOUND}, {EXPLORED})"


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_the_next_start_puts_back_what_a_killed_run_had_found_and_only_the_next(
    model: str, instances: int
) -> None:
    """Where it was killed in the middle of a change, too: instances come one after the other."""
    killed_run(model, changes=f"point.changing({FOUND}, {EXPLORED})")
    server = Server(EXPLORED | {"instances": instances})
    for _ in range(2):
        keeping.restore(RestorePoint("localhost:1", model), server, SAME, Console(quiet=True))
    assert server.applied == [FOUND]


@pytest.mark.parametrize(
    ("change", "queue_is_long"),
    [
        ({"instances": 4}, False),
        ({"instances": 4}, True),
        ({"instances": 4, "max_batch_size": 8, "max_queue_delay_us": 0}, False),
    ],
)
def test_each_stage_of_a_change_is_known_for_the_killed_runs_own(
    model: str, change: dict[str, int], queue_is_long: bool
) -> None:
    before = parse(CONFIG)
    wanted = edited(before, change)
    killed_run(model, changes=f"point.changing({knob_values(before)}, {knob_values(wanted)})")
    killed = RestorePoint("localhost:1", model).to_restore()
    assert killed is not None
    loads = stages(before, wanted, change.keys() == {"instances"}, 1, queue_is_long)
    assert len(loads) > 1
    assert [killed.why_not(knob_values(each), SAME) for each in loads] == [""] * len(loads)


@pytest.mark.parametrize(
    ("changes", "in_force", "server", "says"),
    [
        (ONE_CHANGE, {"instances": 3, "max_batch_size": 2}, SAME, "not what it had"),
        (ONE_CHANGE, {"instances": 4}, SAME, "not what it had"),
        (ONE_CHANGE, EXPLORED, ServerIdentity("rrl-serve 1", 99.0), "anew"),
        (ONE_CHANGE, EXPLORED, ServerIdentity("rrl-serve 2", 7.0), "anew"),
        ("", EXPLORED, SAME, "not what it had put there, so 4 inst. · batch 8 stays"),
    ],
)
def test_what_somebody_else_has_put_in_force_since_stays(
    model: str, changes: str, in_force: dict[str, int], server: ServerIdentity, says: str
) -> None:
    killed_run(model, changes=changes)
    there, out = Server(in_force), io.StringIO()
    point = RestorePoint("localhost:1", model)
    assert keeping.restore(point, there, server, Console(file=out, width=300)) is None
    assert there.applied == []
    assert says in out.getvalue()
    assert "it had found 1 inst. · batch 4" in out.getvalue()
    assert point.to_restore() is None


def test_the_next_start_makes_good_what_a_start_that_was_killed_had_put_back_by_half(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = EXPLORED | {"instances": 2}
    killed_run(model, changes=f"{ONE_CHANGE}; point.changing({EXPLORED}, {left})")
    server = Server(left)

    def killed_halfway(found: Configuration, text: str = "") -> None:
        server.in_force = left | {"max_batch_size": found["max_batch_size"]}
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(server, "restore", killed_halfway)
        with pytest.raises(KeyboardInterrupt):
            keeping.restore(RestorePoint("localhost:1", model), server, SAME, Console(quiet=True))
    keeping.restore(RestorePoint("localhost:1", model), server, SAME, Console(quiet=True))
    assert server.applied == [FOUND]


@pytest.mark.parametrize(
    ("changes", "server", "applied"),
    [
        (ONE_CHANGE, SAME, [FOUND]),
        (f"{ONE_CHANGE}; point.changing({FOUND}, {FOUND})", SAME, [FOUND]),
        (f"{ONE_CHANGE}; point.changing({EXPLORED}, {FOUND})", SAME, []),
        ("", SAME, []),
        (ONE_CHANGE, ServerIdentity("rrl-serve 1", 99.0), []),
    ],
)
def test_what_was_found_is_sent_once_more_where_the_server_may_go_on_with_another_change(
    model: str, changes: str, server: ServerIdentity, applied: list[dict[str, int]]
) -> None:
    """A server that loads tells what was in force before, until it is done."""
    killed_run(model, changes=changes)
    there, point = Server(FOUND), RestorePoint("localhost:1", model)
    assert keeping.restore(point, there, server, Console(quiet=True)) is None
    assert there.applied == applied
    assert point.to_restore() is None


def test_a_server_that_comes_back_in_mid_run_is_known_by_its_last_change(model: str) -> None:
    changes = "Server.identity = lambda self: Id('rrl-serve 1', 99.0)"
    killed_run(model, changes=f"{changes}; point.changing({FOUND}, {EXPLORED})")
    there = Server(EXPLORED)
    again = ServerIdentity("rrl-serve 1", 99.0)
    keeping.restore(RestorePoint("localhost:1", model), there, again, Console(quiet=True))
    assert there.applied == [FOUND]


def test_what_another_run_claimed_meanwhile_is_not_put_back_again(model: str) -> None:
    first = RestorePoint("localhost:1", model)
    first.claim(FOUND)
    point = RestorePoint("localhost:1", model)
    with pytest.raises(TargetTaken):
        point.forget()
    with pytest.raises(TargetTaken):
        point.to_restore()


def test_a_folder_shared_with_another_machine_confuses_neither(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for target in ("localhost:1", "box.invalid:1"):
        killed_run(model, target)
    for module in (restore, state_file):
        monkeypatch.setattr(module, "machine", lambda: "another")
    monkeypatch.setattr(state_file, "_network", lambda: "another's")
    assert RestorePoint("localhost:1", model).to_restore() is None  # that is its own
    with pytest.raises(
        TargetTaken, match=rf"an rrl-tune on .* \(pid \d+\) tunes {model} on box.invalid:1, or was killed"
    ):
        RestorePoint("box.invalid:1", model).to_restore()


class Leases:
    """A server with one lease."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    def identity(self) -> ServerIdentity:
        return SAME

    def is_still(self, server: ServerIdentity) -> bool:
        return server == SAME

    def lease_to(self, owner: str, duration_s: float, anew: bool = False) -> None:
        self.asked.append((owner, duration_s))


def test_a_claim_holds_the_lease_of_its_server_until_it_ends(model: str) -> None:
    leases = Leases()
    point = RestorePoint("localhost:1", model, leases)
    point.claim(FOUND, interval_s=100.0)
    point.changing(FOUND, EXPLORED)
    point.release()
    (owner, *same), durations = zip(*leases.asked, strict=True)
    assert same == [owner, owner]
    assert durations == (300.0, 300.0, 0.0)
    assert f"pid {os.getpid()}" in owner


def test_what_is_put_back_is_put_back_under_the_lease_of_the_killed_run(model: str) -> None:
    killed_run(model, changes=f"point.changing({FOUND}, {EXPLORED})")
    leases = Leases()
    point = RestorePoint("localhost:1", model, leases)
    owner = json.loads(point.path.read_text())["owner"]
    keeping.restore(point, Server(EXPLORED), SAME, Console(quiet=True))
    assert leases.asked == [(owner, restore.MIN_LEASE_S), (owner, 0.0)]


def test_a_change_that_another_tuners_lease_forbids_is_not_noted(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    leases = Leases()
    point = RestorePoint("localhost:1", model, leases)
    point.claim(FOUND)
    point.changing(FOUND, EXPLORED)
    noted = point.path.read_text()

    def refuse(owner: str, duration_s: float, anew: bool) -> None:
        raise LeaseTaken("leased to rrl-tune of bob")

    monkeypatch.setattr(leases, "lease_to", refuse)
    with pytest.raises(LeaseTaken):
        point.changing({"instances": 2, "max_batch_size": 16}, EXPLORED)
    assert point.path.read_text() == noted


def empty(path: Path) -> None:
    path.write_text("")


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [empty, replace_by_a_folder])
def test_a_file_that_somebody_spoils_in_mid_run_stops_no_change_and_no_end(
    spoil: Callable[[Path], None], model: str
) -> None:
    point = RestorePoint("localhost:1", model)
    point.claim(FOUND)
    spoil(point.path)
    point.changing(FOUND, EXPLORED)
    point.safe(EXPLORED)
    point.release()
    assert point.path.exists()  # It is not this run's any more.


def test_a_file_that_cannot_be_removed_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    point = RestorePoint("localhost:1", model)
    point.claim(FOUND)

    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", read_only)
        point.release()
    assert f"{point.path} cannot be removed (Read-only file system): remove it by hand" in caplog.text
    assert not RestorePoint("localhost:1", model)._right.is_held()
