"""A stock Ray Serve application on a real cluster of two nodes, as a target: nothing of ours runs there."""

from __future__ import annotations

import pytest

from rrl import journal
from rrl.command_line import main
from serving_adapter.target.error import NotPutBack, RequestsRefused, TargetError
from serving_adapter.target.ray_serve.ray_serve_target import RayServeTarget
from serving_adapter.target.testing import PROMISES
from serving_adapter.yaml_text import yaml_of
from tests.support.servers.ray_application import RayApplication
from tests.support.waiting import until

BATCHES = {"max_batch_size": 8, "max_queue_delay_us": 5000}


@pytest.fixture(scope="module")
def application(ray_cluster):
    deployed = RayApplication.on(ray_cluster.dashboard)
    deployed.deploy()
    yield deployed
    deployed.end()


@pytest.fixture
def target(application):
    """Connected; the configuration found is in force again after the test."""
    target = RayServeTarget(application.address, "Doubled")
    target.connect()
    found = target.configuration()
    yield target
    target.restore(found)
    target.close()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_the_contract_of_a_target(application, promise):
    promise(lambda: RayServeTarget(application.address, "Doubled"), BATCHES, application.ask)


def test_a_change_edits_the_fields_of_its_deployment_alone(application, target):
    before = application.submitted()
    target.apply(BATCHES | {"max_ongoing_requests": 40})
    after = application.submitted()
    (entry,) = after["numbers"].pop("deployments")
    (found,) = before["numbers"].pop("deployments")
    user_config = {**found["user_config"], "max_batch_size": 8, "batch_wait_timeout_s": 0.005}
    assert entry == found | {"user_config": user_config, "max_ongoing_requests": 40}
    assert after == before
    target.apply({"max_ongoing_requests": 32})
    # What was left to the code is left to it again.
    assert "max_ongoing_requests" not in application.submitted()["numbers"]["deployments"][0]


def test_no_request_is_lost_while_replicas_come_and_batches_grow(application, target):
    before = target.read()
    with application.load(rate_per_s=15) as load:
        assert target.apply({"instances": 2})[:2] == (True, 1)
        assert target.apply(BATCHES)[:2] == (True, 0)
        assert target.apply({"instances": 1})[:2] == (True, 0)
    assert load.failed == []
    after = until(lambda: _counts(target, before.success + load.answered), "all is counted")
    assert after.success == before.success + load.answered  # the replica that went away included
    assert after.failure == before.failure
    assert after.latency.cumulative[-1] - before.latency.cumulative[-1] == load.answered
    assert 0 < after.execution_count - before.execution_count <= load.answered


def _counts(target, success):
    reading = target.read()
    return reading if reading.success >= success else None


def test_what_the_application_refuses_is_put_back(application, target):
    before = application.submitted()
    with pytest.raises(TargetError, match="no more than 64 rows fit") as refused:
        target.apply({"max_batch_size": 65})
    assert "the previous configuration is in force" in str(refused.value)
    assert not isinstance(refused.value, NotPutBack)
    assert application.submitted() == before
    application.ask()


def test_more_replicas_than_find_a_place_are_refused_before_anything_changes(application, target):
    before = application.submitted()
    assert target.knobs()["instances"].high == 3  # one of the four CPUs is the other application's
    with pytest.raises(RequestsRefused, match="4 replicas of 1 CPUs find no place"):
        target.apply({"instances": 4})
    assert application.submitted() == before


@pytest.mark.parametrize(
    ("address", "deployment", "says"),
    [
        ("{dashboard}", "Doublet", "has no deployment 'Doublet'; deployments: numbers#Doubled"),
        ("{gcs}", "Doubled", "answers, but not HTTP"),
        ("127.0.0.1:9", "Doubled", "nothing answers at ray://127.0.0.1:9"),
        ("{serve}", "Doubled", "as no Ray dashboard does"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(ray_cluster, application, address, deployment, says):
    places = {
        "dashboard": ray_cluster.dashboard,
        "gcs": ray_cluster.address,
        "serve": f"127.0.0.1:{application.http_port}",
    }
    with pytest.raises(TargetError, match=says):
        RayServeTarget("ray://" + address.format(**places), deployment).connect()


def test_tuning_leaves_a_configuration_that_it_measured_and_its_file(application, target, tmp_path):
    with application.load(rate_per_s=15) as load, pytest.raises(SystemExit) as ended:
        main(
            f"--target {application.address} --deployment Doubled --agent sweep --intervals 2 --validation 0 "
            f"--interval-s 2 --settle-s 0.5 --knobs max_batch_size=4,8 --out {tmp_path}".split()
        )
    assert ended.value.code == 0
    assert load.failed == []
    _, records = journal.read(tmp_path)
    assert {record.configuration["max_batch_size"] for record in records} == {4, 8}
    in_force = application.submitted()
    exported = yaml_of((tmp_path / "best_serve_config.yaml").read_text())
    apps = {app["name"]: app for app in exported["applications"]}
    best = apps["numbers"]["deployments"][0]["user_config"]
    assert best == in_force["numbers"]["deployments"][0]["user_config"]
    assert apps["words"] == in_force["words"]


def test_advice_says_what_it_observed_and_changes_nothing(application, capsys):
    """Requests come faster than one after the other is answered, so that batches hold several."""
    before = application.submitted()
    with application.load(rate_per_s=40) as load, pytest.raises(SystemExit) as ended:
        main(
            f"--target {application.address} --deployment Doubled --advise --intervals 3 "
            "--interval-s 2 --settle-s 0.5".split()
        )
    assert ended.value.code == 0
    assert load.failed == []
    assert application.submitted() == before
    said = " ".join(capsys.readouterr().out.split())
    assert "in 1 inst. · 1 intra · batch 4 · delay 2 ms · max_ongoing_requests 32" in said
    assert "no recommendation: the target tells no service times by batch size" in said
