"""How a change of a deployment is taken back: what others have deployed meanwhile stays as it is."""

import copy

import pytest

from serving_adapter.target.error import LostInChange, NotPutBack, Overtaken, TargetError, TargetLost
from serving_adapter.target.ray_serve import rollout
from serving_adapter.target.ray_serve.deployed import find_deployment
from serving_adapter.target.ray_serve.edited_config import edited
from tests.support.servers.fake_dashboard import ADDRESS, FakeDashboard


@pytest.fixture
def dashboard():
    return FakeDashboard()


def change(dashboard, **knobs):
    before = find_deployment(dashboard.applications(), "Doubled", ADDRESS)
    wanted = before.values() | knobs
    return rollout.put_in_force(dashboard, before, edited(before, knobs), wanted)


def overrides(dashboard):
    return dashboard.told["applications"]["numbers"]["deployed_app_config"]["deployments"]


def test_what_was_put_in_force_is_told(dashboard):
    assert change(dashboard, instances=3).values()["instances"] == 3
    assert len(dashboard.put) == 1


def test_what_fails_is_put_back_beside_what_others_have_deployed_since(dashboard):
    def deploy(apps):
        apps["theirs"] = copy.deepcopy(apps["words"])
        apps["theirs"]["deployed_app_config"] |= {"name": "theirs", "deployments": []}
        apps["numbers"]["deployed_app_config"]["route_prefix"] = "/twice"

    before = overrides(dashboard)
    dashboard.most, dashboard.meanwhile = 2, deploy
    with pytest.raises(TargetError, match=r"no memory \(the previous configuration is in force\)$"):
        change(dashboard, instances=3)
    assert [app["name"] for app in dashboard.put[1]["applications"]] == ["numbers", "words", "theirs"]
    assert dashboard.told["applications"]["numbers"]["deployed_app_config"]["route_prefix"] == "/twice"
    assert overrides(dashboard) == before


def test_what_was_left_to_the_code_is_left_to_it_again_after_a_change_that_failed(dashboard):
    del dashboard.told["applications"]["numbers"]["deployed_app_config"]["deployments"]
    dashboard.most = 2
    with pytest.raises(TargetError, match="the previous configuration is in force"):
        change(dashboard, instances=3)
    assert dashboard.put[1]["applications"][0]["deployments"] == []


def test_what_another_client_sets_of_the_deployment_meanwhile_stays(dashboard):
    def configure(apps):
        app = apps["numbers"]
        entry = app["deployed_app_config"]["deployments"][0] | {"num_replicas": 4}
        dashboard._deploy(app, app["deployed_app_config"] | {"deployments": [entry]})

    dashboard.meanwhile = configure
    with pytest.raises(Overtaken, match=r"another client configured numbers#Doubled .* instances=4"):
        change(dashboard, instances=3)
    assert len(dashboard.put) == 1
    assert overrides(dashboard)[0]["num_replicas"] == 4


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [("HEALTHY", TargetError, "is in force"), ("DEPLOY_FAILED", NotPutBack, "could not be put back")],
)
def test_what_another_client_sets_back_meanwhile_is_waited_for(dashboard, status, error, says):
    def set_back(apps):
        app = apps["numbers"]
        dashboard._deploy(app, app["deployed_app_config"] | {"deployments": before})
        app["deployments"]["Doubled"]["status"] = status
        app["status"] = status if status == "DEPLOY_FAILED" else "RUNNING"

    before = overrides(dashboard)
    dashboard.meanwhile = set_back
    with pytest.raises(TargetError, match=rf"\(the previous configuration {says}") as raised:
        change(dashboard, instances=3)
    assert type(raised.value) is error
    assert len(dashboard.put) == 1


def test_a_replica_that_is_lost_in_a_change_is_waited_for(dashboard):
    dashboard.loses_replica_in = {1}
    assert change(dashboard, instances=3).values()["instances"] == 3
    assert len(dashboard.put) == 1


def test_a_replica_that_is_lost_while_a_change_is_taken_back_is_waited_for(dashboard):
    dashboard.most, dashboard.loses_replica_in = 2, {2}
    with pytest.raises(TargetError, match=r"no memory \(the previous configuration is in force\)$"):
        change(dashboard, instances=3)
    assert len(dashboard.put) == 2


def test_a_change_that_the_dashboard_does_not_take_leaves_all_as_it_was(dashboard):
    dashboard.refuses = TargetError("ray://127.0.0.1:8265 wants its cluster's token")
    with pytest.raises(TargetError, match=r"token \(the previous configuration is in force\)$") as raised:
        change(dashboard, instances=3)
    assert not isinstance(raised.value, NotPutBack | LostInChange)
    assert len(dashboard.put) == 1


def test_a_change_of_which_nobody_knows_whether_it_was_taken_is_put_back(dashboard):
    before = overrides(dashboard)
    dashboard.loses = TargetLost("the dashboard is lost (timed out)")
    with pytest.raises(TargetError, match=r"timed out\) \(the previous configuration is in force\)$"):
        change(dashboard, instances=3)
    assert len(dashboard.put) == 2
    assert overrides(dashboard) == before
