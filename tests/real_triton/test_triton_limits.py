"""What cannot be tuned, or goes wrong while it is: what a target says of it, and what it leaves behind."""

from functools import partial

import grpc
import pytest

from rrl.command_line import main
from scripts.triton_server.running import running
from serving_adapter.target import OpenInferenceTarget, TargetError, TargetLost
from tests.support import CHECKOUT
from tests.support.models.fragile import DEADLY_THREADS, NO_ROOM_THREADS
from tests.support.servers.triton_served import Served
from tests.support.waiting import until


@pytest.fixture
def start_fragile(start_server, monkeypatch):
    """Our own server with the model that some configurations break."""

    def start():
        monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
        return start_server("--model", "tests.support.models.fragile:fragile", "--intra-op-threads", "1")

    return start


@pytest.fixture(params=["rrl-serve", "triton"])
def fragile(request, serve):
    """The model `fragile` of each server."""
    if request.param == "triton":
        return serve(request.getfixturevalue("triton"), "fragile")
    return serve(request.getfixturevalue("start_fragile")(), "fragile")


def test_a_change_that_fails_leaves_the_configuration_from_before_in_force(fragile, make_target):
    found = fragile.config()
    target = make_target(fragile)
    with pytest.raises(TargetError) as caught:
        target.apply({"max_batch_size": 2, "intra_op_threads": NO_ROOM_THREADS})
    assert "the previous configuration is in force" in str(caught.value)
    assert "no room for so many threads" in str(caught.value) or not fragile.is_triton
    assert "\n" not in str(caught.value)
    assert fragile.config() == found
    fragile.infer()
    target.apply({"max_queue_delay_us": 10})  # it can still be changed
    target.apply(target.configuration() | {"max_queue_delay_us": 0})
    assert fragile.config() == found


@pytest.mark.parametrize("kind", ["rrl-serve", "triton"])
def test_a_server_that_dies_in_mid_change_is_told_in_one_sentence(
    kind, serve, make_target, start_fragile, installation, repository
):
    def die(server):
        target = make_target(serve(server, "fragile"), metrics=False)
        with pytest.raises(TargetLost) as caught:
            target.apply({"intra_op_threads": DEADLY_THREADS})
        server.process.wait(30)
        assert f"the target {server.address} is lost" in str(caught.value)
        assert f"in the middle of a change to intra_op_threads={DEADLY_THREADS}" in str(caught.value)
        assert "\n" not in str(caught.value)

    if kind == "rrl-serve":
        die(start_fragile())
    else:
        with running(repository, "--load-model=fragile", installation=installation) as server:
            die(server)


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_without_model_control_the_target_is_refused_but_can_be_observed(
    mode, installation, light_repository, serve, make_target
):
    with running(light_repository, f"--model-control-mode={mode}", installation=installation) as server:
        served = serve(server, "member")
        found = served.config()
        with pytest.raises(TargetError) as caught:
            make_target(served)
        assert "--model-control-mode=explicit --load-model=MODEL" in str(caught.value)
        target = make_target(served, control=False)
        with pytest.raises(TargetError, match="--model-control-mode=explicit"):
            target.check_control()
        served.infer()
        assert target.read().success == 1
        assert served.config() == found


def test_a_locked_server_wants_its_key(installation, light_repository, serve, make_target):
    lock = "--grpc-restricted-protocol=model-repository:control-key=secret"
    with running(light_repository, lock, "--load-model=member", installation=installation) as server:
        served = serve(server, "member")
        with pytest.raises(TargetError, match=r"wants a control key .*; give --control-key-file"):
            make_target(served)
        make_target(served, control_key="secret").apply({"instances": 2})
        assert served.config().instance_group[0].count == 2


def is_beyond(served: Served, completed: int) -> bool:
    return served.completed() > completed


def test_a_step_changes_under_the_requests_of_its_ensemble(triton, serve, load, make_target):
    pipeline, member = serve(triton, "pipeline"), serve(triton, "member")
    target = make_target(member)
    found = target.configuration()
    with load(pipeline, rate_per_s=60) as sending:
        for knobs in ({"instances": 2}, {"max_queue_delay_us": 500}, {"max_batch_size": 16, "instances": 1}):
            target.apply(knobs)
        with pytest.raises(TargetError, match=r"max_batch_size 4 is below the 8 of the ensemble 'pipeline'"):
            target.apply({"max_batch_size": 4})
        target.apply(found)
    assert sending.failed == {}
    assert target.configuration() == found


def test_an_ensemble_is_refused_but_it_and_its_steps_can_be_observed(triton, serve, make_target):
    pipeline, member = serve(triton, "pipeline"), serve(triton, "member")
    found = pipeline.config(), member.config()
    with pytest.raises(TargetError, match=r"is an ensemble, .* tunes its steps \(member\)"):
        make_target(pipeline)
    for served in (pipeline, member):
        reading, completed = make_target(served, control=False).read(), served.completed()
        pipeline.infer()
        until(partial(is_beyond, served, completed))
        assert make_target(served, control=False).read().success == reading.success + 1
    assert (pipeline.config(), member.config()) == found


def test_advice_on_an_ensemble_says_what_could_be_tuned_instead(triton, serve, load, capsys):
    pipeline = serve(triton, "pipeline")
    target = ["--target", pipeline.address, "--metrics-url", pipeline.metrics_url, "--model", "pipeline"]
    with load(pipeline), pytest.raises(SystemExit) as ended:
        main([*target, "--advise", "--interval-s", "0.6", "--settle-s", "0.1", "--forbid", "instances"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no recommendation: model 'pipeline' at" in said
    assert "is an ensemble" in said


def test_why_a_step_keeps_its_batches_triton_takes_its_ensemble_out_of_service(triton, serve):
    """The fact behind the limit; the day this fails, it need not be."""
    pipeline, member = serve(triton, "pipeline"), serve(triton, "member")
    found = member.config()
    smaller = member.config()
    smaller.max_batch_size = 4
    smaller.dynamic_batching.preferred_batch_size[:] = [4]
    try:
        member.load(smaller)
        with pytest.raises(grpc.RpcError, match="no available versions"):
            pipeline.request()
    finally:
        member.load(found)
    pipeline.infer()


def test_a_sequence_batcher_leaves_the_instances_to_tune_and_no_sequence_is_cut(triton, serve, make_target):
    served = serve(triton, "conversation")
    target = make_target(served)
    assert set(target.knobs()) == {"instances"}
    assert "batches sequences, so the instances are its only knob" in " ".join(target.notes)
    with pytest.raises(TargetError, match="has no knob max_batch_size; it has instances"):
        target.apply({"max_batch_size": 4})
    sequences = range(1, 7)
    for sequence in sequences:
        served.infer(sequence=sequence, start=True)
    for instances in (3, 2, 1):
        assert target.apply({"instances": instances}).in_place
        for sequence in sequences:
            served.infer(sequence=sequence)
    for sequence in sequences:
        served.infer(sequence=sequence, end=True)


def test_a_batcher_of_the_oldest_sequences_is_refused(triton, serve, make_target):
    with pytest.raises(TargetError, match="by the strategy 'oldest', which forbids every knob"):
        make_target(serve(triton, "dialogue"))


def test_files_that_changed_make_a_change_of_instances_a_reload_which_is_told(
    triton, serve, make_target, repository
):
    served = serve(triton, "fragile")
    target = make_target(served)
    for _ in range(3):
        served.infer()
    target.read()
    (repository / "fragile" / "1" / "model.py").touch()
    assert target.apply({"instances": 2})[:2] == (False, 2)
    target.apply({"instances": 1})


def test_a_dead_server_is_lost_and_found_again_on_its_ports(installation, light_repository, serve):
    flags = ("--load-model=member",)
    with running(light_repository, *flags, installation=installation) as server:
        target = OpenInferenceTarget(server.address, "member", server.metrics_url)
        target.connect()
        server.process.kill()
        server.process.wait()
        with pytest.raises(TargetLost):
            target.read()
        with pytest.raises(TargetError, match="does not answer"):
            target.connect()
    ports = {
        name: int(url.rpartition(":")[2].partition("/")[0])
        for name, url in (
            ("grpc_port", server.address),
            ("http_port", server.http_address),
            ("metrics_port", server.metrics_url),
        )
    }
    with running(light_repository, *flags, installation=installation, **ports) as again:
        assert again.address == server.address
        target.connect()
        assert target.read().success == 0
        target.close()
