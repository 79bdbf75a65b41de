"""What `--engine ray` cannot do is said before anything starts."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from serving_adapter import ray_connection, resources
from serving_adapter.server.deployment import models_of
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol.overrides import override


def refused(capsys: pytest.CaptureFixture[str], options: ServeOptions) -> str:
    with pytest.raises(SystemExit) as ended:
        models_of(options)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_without_ray_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(ray_connection, "find_spec", lambda name: None if name == "ray" else found(name))
    said = refused(capsys, ServeOptions(model=("noop",), engine="ray"))
    assert said.startswith("--engine ray needs Ray: pip install 'ray[serve]")


def test_another_device_than_the_processor_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "find_spec", lambda name: object())
    said = refused(capsys, ServeOptions(model=("noop",), engine="ray", device="cuda:0"))
    assert said.startswith("--engine ray runs models on CPUs, got --device cuda:0")


@pytest.mark.parametrize(("given", "threads"), [({}, 1), ({"intra_op_threads": 3}, 3)])
def test_a_worker_has_one_thread_whatever_the_machine_of_the_front(
    given: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "find_spec", lambda name: object())
    monkeypatch.setattr(resources, "cores", lambda: 64)
    (model,) = models_of(ServeOptions(model=("noop",), engine="ray", **given)).values()
    assert model.knobs.intra_op_threads == threads
    (at_home,) = models_of(ServeOptions(model=("noop",))).values()
    assert at_home.knobs.intra_op_threads == 64


def test_a_cluster_may_have_more_instances_than_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "find_spec", lambda name: object())
    (model,) = models_of(ServeOptions(model=("noop",), engine="ray", instances=160)).values()
    settings = model.knobs, model.resilience
    knobs, _ = override(model, '{"instance_group": [{"count": 65}]}', *settings)
    assert (model.knobs.instances, knobs.instances) == (160, 65)
    with pytest.raises(ValueError, match="instances must be from 1 to 10000, got 10001"):
        override(model, '{"instance_group": [{"count": 10001}]}', *settings)
    (at_home,) = models_of(ServeOptions(model=("noop",), instances=64)).values()
    with pytest.raises(ValueError, match="instances must be from 1 to 64, got 65"):
        override(at_home, '{"instance_group": [{"count": 65}]}', *settings)
    said = refused(capsys, ServeOptions(model=("noop",), instances=65))
    assert said.startswith("instances must be from 1 to 64, got 65")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"address": "10.0.0.1:6379"}, "--address 10.0.0.1:6379"),
        ({"nodes": 2}, "--nodes 2"),
        ({"fronts": 2, "instances": 2}, "--fronts 2"),
        ({"placement": "pack"}, "--placement pack"),
        ({"nodes_per_unit": 2}, "--nodes-per-unit 2"),
        ({"nodes": 2, "placement": "pack"}, "--nodes 2 --placement pack"),
    ],
)
def test_what_needs_a_cluster_is_refused_without_one(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} is for the nodes of a Ray cluster; add --engine ray, or"):
        ServeOptions(**given)
    assert ServeOptions(engine="ray", **given)
