"""What a real dashboard told of two applications: its knobs, what may be tuned, and what is sent back."""

import copy
import json
from collections import Counter
from pathlib import Path

import pytest

from serving_adapter.target.error import ModelAbsent, TargetError
from serving_adapter.target.ray_serve import checks
from serving_adapter.target.ray_serve.dashboard import Dashboard
from serving_adapter.target.ray_serve.deployed import Deployed, find_deployment
from serving_adapter.target.ray_serve.edited_config import (
    FoundOverrides,
    KeptApplication,
    as_yaml,
    edited,
    in_force,
)
from serving_adapter.target.ray_serve.ray_serve_target import RayServeTarget
from serving_adapter.yaml_text import yaml_of

RECORDED = Path(__file__).parent / "recorded"
ADDRESS = "ray://127.0.0.1:8265"


@pytest.fixture
def told():
    """The answer of the dashboard."""
    return json.loads((RECORDED / "applications.json").read_text())


@pytest.fixture
def doubled(told):
    return find_deployment(told, "Doubled", ADDRESS)


def entry_of(config):
    (entry,) = config["applications"][0]["deployments"]
    return entry


def test_the_knobs_are_what_its_authors_expose(told, doubled):
    assert doubled.values() == {
        "instances": 2,
        "intra_op_threads": 1,
        "max_batch_size": 4,
        "max_queue_delay_us": 2000,
        "max_ongoing_requests": 32,
    }
    greeting = find_deployment(told, "Greeting", ADDRESS)
    assert greeting.values() == {"instances": 1, "intra_op_threads": 1, "max_ongoing_requests": 5}
    assert "expose them there" in checks.notes(greeting)[0]


def test_a_deployment_is_found_by_each_of_its_names(told, doubled):
    for name in ("Doubled", "numbers#Doubled", "numbers"):
        assert find_deployment(told, name, ADDRESS) == doubled
    assert doubled.name == "Doubled"
    told["applications"]["words"]["deployments"]["Doubled"] = {}
    assert doubled.name == "numbers#Doubled"
    with pytest.raises(TargetError, match="several deployments; name one"):
        find_deployment(told, "Doubled", ADDRESS)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("Doublet", "no deployment 'Doublet'; deployments: numbers#Doubled, words#Greeting"),
        (None, "several deployments; name one with --deployment: numbers#Doubled, words#Greeting"),
    ],
)
def test_a_name_that_is_none_is_answered_by_those_there_are(told, named, says):
    with pytest.raises(TargetError, match=says):
        find_deployment(told, named, ADDRESS)


def test_a_cluster_without_applications_says_so(told):
    told["applications"].clear()
    with pytest.raises(TargetError, match="deploy one with serve deploy"):
        find_deployment(told, None, ADDRESS)


def test_an_application_that_goes_away_is_a_model_that_is_absent(told, doubled):
    told["applications"]["numbers"]["status"] = "DELETING"
    with pytest.raises(ModelAbsent, match="'numbers' is not deployed any more"):
        doubled.values()


def test_what_is_sent_is_what_was_submitted(told):
    sent = in_force(told)
    assert sent["applications"] == [app["deployed_app_config"] for app in told["applications"].values()]
    assert sent["http_options"] == told["http_options"]
    assert "target_capacity" not in sent


def test_what_serve_run_deployed_is_not_sent_and_so_not_touched(told):
    told["applications"]["words"] |= {"source": "imperative", "deployed_app_config": None}
    assert [app["name"] for app in in_force(told)["applications"]] == ["numbers"]


def test_nothing_is_sent_that_would_delete_an_application(told):
    told["applications"]["words"]["deployed_app_config"] = None
    with pytest.raises(TargetError, match="would delete then"):
        in_force(told)


def test_an_edit_sets_the_fields_of_the_knobs_and_keeps_their_neighbours(told, doubled):
    before = copy.deepcopy(in_force(told))
    after = edited(doubled, {"instances": 3, "max_queue_delay_us": 500, "intra_op_threads": 2})
    assert entry_of(after) == {
        "name": "Doubled",
        "num_replicas": 3,
        "user_config": {"max_batch_size": 4, "batch_wait_timeout_s": 0.0005, "owner": "the search team"},
        "ray_actor_options": {"num_cpus": 2},
    }
    assert after["applications"][1:] == before["applications"][1:]
    assert in_force(told) == before


def test_a_field_that_was_left_to_the_code_keeps_what_the_code_says_beside_the_knob(told, doubled):
    effective = told["applications"]["numbers"]["deployments"]["Doubled"]["deployment_config"]
    effective["ray_actor_options"]["resources"] = {"slots": 1}
    told["applications"]["numbers"]["deployed_app_config"].pop("deployments")
    after = edited(doubled, {"max_batch_size": 8, "intra_op_threads": 2})
    assert entry_of(after)["user_config"] == effective["user_config"] | {"max_batch_size": 8}
    assert entry_of(after)["ray_actor_options"] == {"num_cpus": 2, "resources": {"slots": 1}}


def test_what_was_left_to_the_code_is_left_to_it_again(told, doubled):
    config = told["applications"]["numbers"]["deployed_app_config"]
    del config["deployments"]
    submitted = copy.deepcopy(in_force(told))
    found = FoundOverrides(doubled)
    found_values = doubled.values()
    config["deployments"] = edited(doubled, {"instances": 3, "max_batch_size": 8}, found)["applications"][0][
        "deployments"
    ]
    effective = told["applications"]["numbers"]["deployments"]["Doubled"]["deployment_config"]
    effective["num_replicas"], effective["user_config"]["max_batch_size"] = 3, 8
    changed = Deployed(told, "numbers", "Doubled")
    assert changed.values() == found_values | {"instances": 3, "max_batch_size": 8}
    assert [
        entry["name"] for entry in edited(changed, {"instances": 2}, found)["applications"][0]["deployments"]
    ]
    restored = edited(changed, found_values, found)
    restored["applications"][0].pop("deployments")  # an empty list says the same
    assert restored == submitted


@pytest.mark.parametrize("value", [0, 1025])
def test_a_value_that_a_knob_cannot_have_is_one_sentence(doubled, value):
    with pytest.raises(TargetError, match="max_batch_size must be from 1 to 1024"):
        edited(doubled, {"max_batch_size": value})


@pytest.mark.parametrize(
    ("of_app", "of_deployment", "says"),
    [
        ({"source": "imperative", "deployed_app_config": None}, {}, "serve build"),
        ({}, {"autoscaling_config": {"min_replicas": 1}, "num_replicas": None}, "has autoscaling on"),
    ],
)
def test_what_cannot_be_tuned_says_what_to_do(told, doubled, of_app, of_deployment, says):
    assert checks.why_not_tunable(doubled, ADDRESS) == ""
    app = told["applications"]["numbers"]
    app |= of_app
    app["deployments"]["Doubled"]["deployment_config"] |= of_deployment
    assert says in checks.why_not_tunable(Deployed(told, "numbers", "Doubled"), ADDRESS)


def test_a_target_capacity_would_scale_every_number_of_replicas(told, doubled):
    told["target_capacity"] = 50.0
    assert "target_capacity of 50 %" in checks.why_not_tunable(doubled, ADDRESS)


@pytest.mark.parametrize(
    "options",
    [
        {"num_cpus": 0.5},
        {"num_cpus": 0.0},
        {"num_cpus": 2.0, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "4"}}},
    ],
)
def test_processors_that_are_not_the_threads_of_a_replica_are_no_knob(told, options):
    told["applications"]["numbers"]["deployments"]["Doubled"]["deployment_config"]["ray_actor_options"] = (
        options
    )
    assert "intra_op_threads" not in Deployed(told, "numbers", "Doubled").values()


def test_threads_in_the_user_config_are_the_knob(told):
    effective = told["applications"]["numbers"]["deployments"]["Doubled"]["deployment_config"]
    effective["user_config"]["intra_op_threads"] = 3
    deployed = Deployed(told, "numbers", "Doubled")
    assert deployed.values()["intra_op_threads"] == 3
    assert not deployed.threads_are_cpus()
    assert entry_of(edited(deployed, {"intra_op_threads": 2}))["user_config"]["intra_op_threads"] == 2


def test_replicas_find_a_place_node_by_node_beside_those_of_others(doubled):
    assert doubled.cpus_of_others() == 1
    assert checks.room_for(2, [3.0, 3.0], 0) == 2  # and not 3
    assert checks.why_no_room(2, 2, [3.0, 3.0], 2) == ""
    assert "3 replicas of 2 CPUs find no place" in checks.why_no_room(3, 2, [3.0, 3.0], 0)
    assert "other deployments hold 3: at most 1 do" in checks.why_no_room(2, 2, [3.0, 3.0], 3)
    assert checks.why_no_room(99, 0, [1.0], 1) == ""  # they hold none


def test_the_file_is_what_serve_deploy_takes_and_can_be_edited_without_the_cluster(told, doubled):
    text = as_yaml(doubled)
    config = yaml_of(text)
    assert entry_of(config).items() >= entry_of(in_force(told)).items()
    assert config["applications"][1] == in_force(told)["applications"][1]
    kept = KeptApplication(text)
    change = {"instances": 1, "max_batch_size": 16, "intra_op_threads": 2}
    assert kept.config_text() == text
    assert kept.config_text(change) == as_yaml(doubled, change)
    assert entry_of(yaml_of(kept.config_text(change)))["num_replicas"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "instances: 2\n",
        "# rrl-tune tunes the deployment a#b\n- 1\n",
        "# rrl-tune tunes the deployment a#b",
    ],
)
def test_another_text_is_none_of_a_deployment(text):
    with pytest.raises(ValueError, match="Ray Serve"):
        KeptApplication(text)


def test_hidden_secrets_are_never_sent_in_the_place_of_the_real_ones():
    dashboard = Dashboard("ray://127.0.0.1:9", 1.0, Counter())
    hidden = {"applications": [{"runtime_env": {"env_vars": {"TOKEN": "<redacted>"}}}]}
    with pytest.raises(TargetError, match="hides the environment variables"):
        dashboard.put_applications(hidden)


@pytest.mark.parametrize("address", ["ray://localhost", "8265", "ray://localhost:x"])
def test_what_is_no_address_of_a_dashboard_is_one_sentence(address):
    with pytest.raises(TargetError, match="must be ray://HOST:PORT"):
        Dashboard(address, 1.0, Counter())


@pytest.mark.parametrize("url", ["host:8080/metrics", "http://", "http://[::1", "http://host:99999/metrics"])
def test_what_is_no_address_of_a_metrics_page_is_one_sentence(url):
    with pytest.raises(TargetError, match="a metrics page must be like http://HOST:PORT/metrics, got"):
        RayServeTarget(ADDRESS, metrics_url=f"http://localhost:8080/metrics,{url}")


def test_a_token_does_not_travel_unencrypted():
    with pytest.raises(TargetError, match="would travel unencrypted"):
        Dashboard("ray://10.9.8.7:8265", 1.0, Counter(), token="secret")
