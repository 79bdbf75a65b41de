"""Light profiling: on a fake target whose service times are known, and on a real server."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
import pytest

from envs.filled_times import fill
from envs.light_profiling import light_profile, main, profile
from envs.profile_load import ProfileLoad
from envs.profile_options import Grid, ProfileOptions, make_grid
from envs.target_claim import restore_point
from rrl.queueing.machine import Machine
from rrl.tuning.restore import TargetTaken
from serving_adapter.knob_limits import CLUSTER_KNOBS, KNOBS, Limits
from serving_adapter.target import LeaseTaken, OpenInferenceTarget, Overtaken, TargetError, TunerLease
from serving_adapter.target.reading import BatchTotals, Reading
from tests.support.servers.echo_server import EchoService, serving
from tests.support.waiting import until

QUICK = ("--instances", "1", "--batch-sizes", "1", "--intra", "1", "--requests-per-point", "3")
GRID = Grid((1,), (1, 2), (1, 2, 3), (1, 4))


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory, monkeypatch):
    """A home of its own for what a killed profile leaves behind."""
    home = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home / "rrl-tune"


def service_time_s(intra, busy, batch):
    return 0.01 * busy**0.5 * batch**0.8 / intra


class ProfiledTarget:
    """Batches take `service_time_s`; all instances are busy, as the driver keeps them.

    With `early`, as many again start with fewer busy, and take that long too, as the others join them.
    """

    is_local = True
    cores = None

    def __init__(self, tells_busy=True, early=False):
        self.tells_busy = tells_busy
        self.early = early
        self.in_force = {"instances": 9, "intra_op_threads": 3, "max_batch_size": 5, "max_queue_delay_us": 7}
        self.found = dict(self.in_force)
        self.applied = []
        self.telemetry = {}
        self.sent = []

    def knobs(self):
        return {name: KNOBS[name] for name in self.in_force}

    def configuration(self):
        return dict(self.in_force)

    def apply(self, configuration):
        self.applied.append(dict(configuration))
        self.in_force.update(configuration)

    def drive(self, requests, outstanding):
        self.sent.append((requests, outstanding))
        intra, busy, batch = (self.in_force[k] for k in ("intra_op_threads", "instances", "max_batch_size"))
        batches = requests // batch
        for at_start in range(1, busy + 1) if self.early else (busy,):
            key = (at_start if self.tells_busy else 0, batch)
            then = self.telemetry.get(key, BatchTotals(0, 0.0))
            self.telemetry[key] = BatchTotals(
                then.batches + batches, then.total_s + batches * service_time_s(intra, busy, batch)
            )

    def read(self):
        return Reading(float(len(self.sent)), 0, 0, 0, 0, 0.0, 0.0, 0.0, telemetry=dict(self.telemetry))


@pytest.mark.parametrize(("tells_busy", "early"), [(True, False), (False, False), (True, True)])
def test_measures_every_point_and_puts_back_what_it_found(tells_busy, early):
    target: Any = ProfiledTarget(tells_busy, early)
    machine, measured = light_profile(target, target.drive, GRID, requests_per_point=20)
    assert measured == machine.service_time_s.size == 12
    for a, intra in enumerate(GRID.intra_op_threads):
        for n, busy in enumerate(GRID.instances):
            for b, batch in enumerate(GRID.batch_sizes):
                expected_s = service_time_s(intra, busy, batch)
                assert machine.service_time_s[0, a, n, b] == pytest.approx(expected_s)
    assert target.applied[-1] == target.found
    assert all("inter_op_threads" not in configuration for configuration in target.applied)


def test_on_a_cluster_batches_of_one_node_are_measured_whatever_was_found():
    target: Any = ProfiledTarget()
    target.in_force["nodes_per_unit"] = target.found["nodes_per_unit"] = 2
    target.knobs = lambda: {name: (KNOBS | CLUSTER_KNOBS)[name] for name in target.in_force}
    machine, _ = light_profile(target, target.drive, GRID, requests_per_point=20)
    assert {configuration["nodes_per_unit"] for configuration in target.applied[:-1]} == {1}
    assert target.in_force == target.found
    assert machine.largest("nodes_per_unit") == 1


def test_enough_requests_are_outstanding_to_keep_all_instances_in_full_batches():
    target: Any = ProfiledTarget()
    light_profile(target, target.drive, Grid((1,), (1,), (3,), (4,)), requests_per_point=20)
    assert target.sent == [(12, 12), (36, 12)]  # warming up, measuring


def test_after_a_rest_requests_come_in_rounds_and_their_times_stand_beside_the_others():
    target: Any = ProfiledTarget()
    rounds = []

    def drive_rounds(number, outstanding, pause_s):
        rounds.append((number, outstanding))
        assert pause_s > 0
        key = (outstanding, 1)
        then = target.telemetry.get(key, BatchTotals(0, 0.0))
        added = number * outstanding
        rested_s = 1.25 * service_time_s(target.in_force["intra_op_threads"], outstanding, 1)
        target.telemetry[key] = BatchTotals(then.batches + added, then.total_s + added * rested_s)

    machine, _ = light_profile(target, target.drive, GRID, 20, drive_rounds=drive_rounds)
    assert rounds == [(20, 1), (10, 2), (7, 3)] * 2  # of batches of 1 alone
    assert machine.rested_time_s == pytest.approx(1.25 * machine.service_time_s[..., 0])
    assert [at_a_time for _, at_a_time in target.sent[1:12:2]] == [2, 8, 4, 16, 6, 24]  # and so many wait


def test_a_point_whose_instances_were_never_all_busy_is_filled_in():
    target: Any = ProfiledTarget(early=True)

    def drive(requests, outstanding):
        target.drive(requests, outstanding)
        target.telemetry.pop((2, 1), None)

    machine, measured = light_profile(target, drive, Grid((1,), (1,), (1, 2, 3), (1,)), requests_per_point=20)
    assert measured == 2
    one_s, two_s, three_s = machine.service_time_s[0, 0, :, 0]
    assert one_s == pytest.approx(service_time_s(1, 1, 1))
    assert three_s == pytest.approx(service_time_s(1, 3, 1))
    assert one_s < two_s < three_s


def test_an_interrupted_profile_puts_back_what_it_found():
    target: Any = ProfiledTarget()

    def interrupted(requests, outstanding):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        light_profile(target, interrupted, GRID, requests_per_point=20)
    assert target.in_force == target.found


class SharedTarget(ProfiledTarget):
    """Another client sets something else in the middle of each change."""

    address, model, server, started_s = "localhost:1", "shared", "triton 2.51", 7.0
    theirs: ClassVar = {"instances": 7, "intra_op_threads": 3, "max_batch_size": 5, "max_queue_delay_us": 0}

    def connect(self, control=True, counters=True):
        pass

    def config_text(self):
        return ""

    def take_lease(self, lease):
        return False

    def apply(self, configuration):
        super().apply(configuration)
        self.in_force.update(self.theirs)
        raise Overtaken("another client set instances=7 while 'shared' was configured, which stays in force")


def test_what_another_client_sets_during_a_profile_ends_it_and_stays(tmp_path, state_home, capsys):
    target: Any = SharedTarget()
    with pytest.raises(Overtaken):
        profile(ProfileOptions(target.address, tmp_path / "m.npz"), target)
    assert len(target.applied) == 1
    assert target.in_force == target.theirs
    said = "the target is as another client has set it; it was found with 9 inst. · 3 intra · batch 5"
    assert said in capsys.readouterr().err
    assert not list(state_home.iterdir())


def test_a_target_without_telemetry_cannot_be_profiled():
    target: Any = ProfiledTarget()
    with pytest.raises(TargetError, match="told of no batch"):
        light_profile(target, lambda requests, outstanding: None, GRID, requests_per_point=20)
    assert target.in_force == target.found


def test_power_laws_are_filled_in_exactly():
    instances, batch_sizes = (1, 2, 4, 8), (1, 2, 4, 8)
    exact_s = 0.01 * np.outer(np.power(instances, 0.5), np.power(batch_sizes, 0.8))
    count = np.ones((4, 4), int)
    count[0, 1] = count[1, 3] = count[3, 0] = 0  # between, beyond the last, before the first
    count[2, :] = 0  # a whole row
    filled_s = fill(count, exact_s * count, instances, batch_sizes)
    np.testing.assert_allclose(filled_s, exact_s)


def test_what_is_filled_in_never_falls_and_what_was_observed_stays():
    count = np.array([[5, 5, 0], [0, 0, 0]])
    total_s = 5 * np.array([[0.020, 0.019, 0.0], [0.0, 0.0, 0.0]])  # noise: a larger batch was faster
    filled_s = fill(count, total_s, (1, 2), (1, 2, 4))
    np.testing.assert_allclose(filled_s[0, :2], [0.020, 0.019])
    assert filled_s[0, 2] >= 0.020
    assert (filled_s[1] >= filled_s[0]).all()


def test_what_is_filled_in_is_no_lower_than_what_was_filled_in_before_it():
    """The slow batches of two, alone, are a bound for all that is larger in both."""
    total_s = np.array([[0.010, 0.060, 0.030], [0.010, 0.0, 0.0], [0.0, 0.040, 0.0]])
    filled_s = fill((total_s > 0).astype(int), total_s, (1, 2, 3), (1, 2, 4))
    assert filled_s[1, 1] == pytest.approx(0.060)
    assert filled_s[2, 2] >= filled_s[1, 2] >= filled_s[1, 1]


def test_one_observation_fills_the_table():
    count = np.zeros((2, 2), int)
    count[1, 0] = 4
    np.testing.assert_allclose(fill(count, count * 0.5, (1, 2), (1, 2)), 0.5)


def test_the_grid_comes_from_the_options_and_the_targets_knobs(tmp_path):
    options = ProfileOptions("localhost:1", tmp_path / "m.npz", instances="1:2", batch_sizes="1,8")
    without_inter = {name: KNOBS[name] for name in KNOBS if name != "inter_op_threads"}
    assert make_grid(options, without_inter, cores=4) == Grid((1,), (1, 2, 4), (1, 2), (1, 8))
    assert make_grid(options, KNOBS, cores=2).inter_op_threads == (1, 2)
    by_default = ProfileOptions("localhost:1", tmp_path / "m.npz")
    assert make_grid(by_default, KNOBS, cores=2).batch_sizes == (1, 2, 4, 8)
    assert make_grid(by_default, KNOBS | {"max_batch_size": Limits(1, 5)}, cores=2).batch_sizes == (1, 2, 4)
    assert make_grid(by_default, {"instances": Limits(1, 64)}, cores=2).batch_sizes == (1,)


@pytest.mark.parametrize(("least", "sizes"), [(4, (4, 8)), (16, (16,))])
def test_no_batches_are_smaller_than_an_ensemble_sends(tmp_path, least, sizes):
    options = ProfileOptions("localhost:1", tmp_path / "m.npz")
    knobs = KNOBS | {"max_batch_size": Limits(least, 1024)}
    assert make_grid(options, knobs, cores=2).batch_sizes == sizes


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"inter": "1,2"}, "has no knob inter_op_threads, so only inter_op_threads=1 can be profiled"),
        ({"batch_sizes": "1,2048"}, "max_batch_size must be from 1 to 1024, got 2048"),
        ({"instances": "0:2"}, "instances must be from 1 to 64, got 0"),
        ({"batch_sizes": "many"}, "cannot read 'many'"),
        ({"intra": "2,1"}, "values must ascend"),
        ({"batch_sizes": "4", "rested": True}, "--rested measures batches of 1"),
    ],
)
def test_a_grid_the_target_cannot_have_gets_one_sentence(tmp_path, more, says):
    options = ProfileOptions("localhost:1", tmp_path / "m.npz", **more)
    knobs = {name: KNOBS[name] for name in KNOBS if name != "inter_op_threads"}
    with pytest.raises(ValueError, match=says):
        make_grid(options, knobs, cores=2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--target", "127.0.0.1:1", "--out", "m.npz"), "does not answer (connection refused)"),
        (("--target", "nowhere", "--out", "m.npz"), "must be HOST:PORT"),
        (("--target", "127.0.0.1:1", "--out", "no/such/folder/m.npz"), "there is no folder"),
        (("--target", "127.0.0.1:1", "--out", "/proc/m.npz"), "cannot read or write /proc/m.npz: "),
        (("--target", "127.0.0.1:1", "--out", "/proc"), "cannot read or write /proc: Is a directory"),
        (("--target", "127.0.0.1:1", "--out", "m.npz", "--size", "0"), "must be at least 1"),
    ],
)
def test_wrong_use_ends_with_one_sentence_and_status_2(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rrl-profile", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in errors
    assert len(errors.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_control_key_comes_from_a_file(start_server, tmp_path, monkeypatch, capsys):
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o600)
    locked = ("--control-key-file", str(key))
    server = start_server("--model", "sleep", "--model-option", "ms=1", *locked)
    arguments = ["rrl-profile", "--target", server.address, "--out", str(tmp_path / "m.npz"), *QUICK]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "wants a control key" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*arguments, *locked])
    main()
    assert "1 of 1 service times measured" in capsys.readouterr().out


def run_profile(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "envs.light_profiling", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_real_server_is_profiled_and_left_as_it_was_found(start_server, tmp_path):
    # Batches take 5 ms and 5 ms for each item.
    server = start_server("--model", "sleep", "--model-option", "ms=5", "--model-option", "per_item_ms=5")
    target = OpenInferenceTarget(server.address)
    target.connect(control=False)
    found = target.configuration()
    out = tmp_path / "machine.npz"
    arguments = ("--target", server.address, "--out", out)

    process = run_profile(*arguments, "--requests-per-point", "100000")
    while target.configuration() == found and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.endswith("the target is as it was found\ninterrupted\n")
    assert target.configuration() == found
    assert not out.exists()

    grid = ("--instances", "1:2", "--batch-sizes", "1,4", "--intra", "1", "--requests-per-point", "6")
    process = run_profile(*arguments, *grid, "--rested")
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert output == f"wrote {out}: 4 of 4 service times measured (and after a rest)\n"
    times_s, rested_s = Machine.load(out).service_time_s, Machine.load(out).rested_time_s
    assert rested_s is not None
    assert (rested_s >= 0.0099).all()
    assert times_s.shape == (1, 1, 2, 2)
    assert (times_s[0, 0, :, 0] >= 0.0099).all()
    assert (times_s[0, 0, :, 1] >= 0.0249).all()
    assert target.configuration() == found
    target.close()


def test_whoever_changes_the_target_is_alone_and_after_kill_9_the_next_start_puts_back_what_was_found(
    start_server, tmp_path, state_home, monkeypatch, capsys
):
    server = start_server("--model", "sleep", "--model-option", "ms=5", "--instances", "3")
    arguments = ("--target", server.address, "--out", str(tmp_path / "m.npz"))
    monkeypatch.setattr(sys, "argv", ["rrl-profile", *arguments, *QUICK])
    with closing(OpenInferenceTarget(server.address)) as target:
        target.connect()
        found = target.configuration()

        target.take_lease(TunerLease("a tuner elsewhere", 600.0))
        with pytest.raises(SystemExit, match="2"):
            main()
        assert "model 'sleep' is leased to a tuner elsewhere" in capsys.readouterr().err
        assert target.configuration() == found
        target.take_lease(TunerLease("a tuner elsewhere", 0.0))

        process = run_profile(*arguments, "--requests-per-point", "100000")
        until(lambda: target.configuration() != found)
        with pytest.raises(SystemExit, match="2"):
            main()
        assert f"another rrl-profile (pid {process.pid}) measures sleep" in capsys.readouterr().err
        with pytest.raises(TargetTaken, match=rf"an rrl-profile \(pid {process.pid}\) measures sleep"):
            restore_point(target).to_restore()
        with pytest.raises(LeaseTaken, match="is leased to rrl-profile of"):
            target.take_lease(TunerLease("a tuner elsewhere", 60.0))
        process.kill()
        process.communicate()
        assert target.configuration() != found

        main()
        said = capsys.readouterr()
        told = " ".join(said.err.split())
        assert "an earlier run did not end cleanly here: put back the configuration it had found" in told
        assert "1 of 1 service times measured" in said.out
        assert target.configuration() == found
        assert not list(state_home.iterdir())
        target.take_lease(TunerLease("a tuner elsewhere", 0.0))


def test_ctrl_c_before_the_load_begins_leaves_no_warning(monkeypatch, recwarn):
    load = ProfileLoad("localhost:1", "sleep", 1)

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio.Runner, "_lazy_init", lambda runner: interrupt())
    with pytest.raises(KeyboardInterrupt):
        load.drive(1, outstanding=1)
    gc.collect()
    assert not recwarn.list


def test_sigterm_amid_the_load_leaves_no_word_of_the_loop(caplog):
    may_answer = threading.Event()

    def interrupt(number, frame):
        raise KeyboardInterrupt

    def answer(number, context):
        os.kill(os.getpid(), signal.SIGTERM)
        may_answer.wait()

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with serving(EchoService(answer)) as address:
            load = ProfileLoad(address, "echo", 1)
            try:
                with pytest.raises(KeyboardInterrupt):
                    load.drive(1, outstanding=1)
                load.close()
            finally:
                may_answer.set()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not caplog.records
