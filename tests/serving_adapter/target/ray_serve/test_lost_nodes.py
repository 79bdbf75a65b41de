"""What a target of Ray Serve makes of nodes that go and come, and of their metrics pages."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest

from serving_adapter.http_exchange import HttpAnswer
from serving_adapter.target.error import RequestsRefused
from serving_adapter.target.ray_serve import counters
from serving_adapter.target.ray_serve.changed_share import ChangedShare
from serving_adapter.target.ray_serve.counters import RayCounters
from serving_adapter.target.ray_serve.deployed import find_deployment
from serving_adapter.target.ray_serve.ray_serve_target import RayServeTarget
from tests.support.servers.fake_dashboard import ADDRESS, RECORDED, FakeDashboard

HEAD, NODE = "http://127.0.0.2:40635/metrics", "http://127.0.0.3:44777/metrics"
BEAT = 'ray_serve_event_loop_monitoring_iterations_total{{WorkerId="{}"}} {}'
OF_NO_NODE = "ray_gcs_actors_count 1\n"


@pytest.fixture
def dashboard():
    return FakeDashboard()


@pytest.fixture
def target(dashboard, monkeypatch):
    target = RayServeTarget(ADDRESS, "Doubled")
    monkeypatch.setattr(target, "_new_dashboard", lambda known=False: dashboard)
    target.connect(counters=False)
    return target


@pytest.fixture
def beating():
    """The processes that tell something new on the head's page whenever it is asked."""
    return set()


@pytest.fixture
def clock(monkeypatch):
    """Time that passes where a reading waits."""
    clock = SimpleNamespace(now_s=0.0)
    clock.monotonic = lambda: clock.now_s
    clock.sleep = lambda s: setattr(clock, "now_s", clock.now_s + s)
    monkeypatch.setattr(counters, "time", clock)
    return clock


@pytest.fixture
def texts(monkeypatch, beating):
    """What each page tells, by its address; no answer comes from others."""
    beats = itertools.count(1)
    told = {HEAD: (RECORDED / "head.txt").read_text(), NODE: (RECORDED / "node.txt").read_text()}

    def exchanged(url, timeout_s):
        if url not in told:
            raise OSError("no route to it")
        beat = next(beats)
        lines = [BEAT.format(process, beat) for process in beating if url == HEAD]
        return HttpAnswer(200, "\n".join([told[url], *lines]).encode())

    monkeypatch.setattr(counters, "exchanged", exchanged)
    return told


def counters_of(dashboard):
    deployed = find_deployment(dashboard.applications(), "Doubled", ADDRESS)
    return RayCounters(deployed, lambda: [HEAD, NODE], Counter(), 1.0), deployed


def share_after(changed, dashboard):
    deployed = find_deployment(dashboard.applications(), "Doubled", ADDRESS)
    return changed.until(deployed, dashboard.cpus_by_node)


def lose_node(dashboard):
    """The one of the first replica, which finds no other."""
    replicas = dashboard.told["applications"]["numbers"]["deployments"]["Doubled"]["replicas"]
    del dashboard.nodes[replicas[0]["node_id"]]
    dashboard.lose_replica(back_after=0)


def test_nothing_is_changed_while_replicas_of_a_lost_node_find_no_place(dashboard, target):
    lose_node(dashboard)
    with pytest.raises(RequestsRefused, match=r"2 replicas of 1 CPUs find no place .*: at most 1 do"):
        target.apply({"max_batch_size": 8})
    assert dashboard.put == []


def test_a_change_goes_on_while_a_lost_replica_is_started_anew(dashboard, target):
    dashboard.lose_replica()
    assert target.apply({"max_batch_size": 8}).in_place
    assert target.configuration()["max_batch_size"] == 8


def test_replicas_that_a_node_takes_and_those_that_come_for_them_are_a_share_of_all(dashboard):
    changed = ChangedShare()
    assert share_after(changed, dashboard) == 0.0
    lose_node(dashboard)
    assert share_after(changed, dashboard) == 0.5
    assert share_after(changed, dashboard) == 0.5
    dashboard.recover()
    assert share_after(changed, dashboard) == 1.0


def test_a_replica_that_ends_by_itself_is_none(dashboard):
    changed = ChangedShare()
    share_after(changed, dashboard)
    dashboard.lose_replica(back_after=0)
    assert share_after(changed, dashboard) == 0.0
    dashboard.recover()
    assert share_after(changed, dashboard) == 0.0


@pytest.mark.parametrize("node", [None, ""])
def test_a_replica_whose_node_is_not_told_is_none(dashboard, node):
    changed = ChangedShare()
    for replica in dashboard.told["applications"]["numbers"]["deployments"]["Doubled"]["replicas"]:
        replica["node_id"] = node
    share_after(changed, dashboard)
    dashboard.lose_replica(back_after=0)
    assert share_after(changed, dashboard) == 0.0


def test_replicas_that_a_change_ends_are_none(dashboard, target):
    changed = ChangedShare()
    share_after(changed, dashboard)
    target.apply({"instances": 1})
    assert share_after(changed, dashboard) == 0.0


def test_a_reading_tells_what_went_with_a_node(dashboard, target, texts, monkeypatch):
    monkeypatch.setattr(dashboard, "metrics_pages", lambda: ["127.0.0.2:40635", "127.0.0.3:44777"])
    target.connect()
    monkeypatch.setattr(target._counters, "read", lambda deployed: target._counters.look())
    assert target.read().cluster_changed_share == 0.0
    lose_node(dashboard)
    assert target.read().cluster_changed_share == 0.5


def test_a_node_whose_page_told_of_others_first_is_read_once_it_tells_of_itself(
    dashboard, texts, beating, clock
):
    of_node = texts[NODE]
    texts[NODE] = OF_NO_NODE
    reader, deployed = counters_of(dashboard)
    assert reader.look().success == 40
    texts[NODE] = of_node
    beating.update(deployed.proxies())
    assert reader.read(deployed).success == 41


def test_the_moment_of_a_reading_is_that_of_all_it_counts_though_one_process_is_silent(
    dashboard, texts, beating, clock
):
    dashboard.told["proxies"]["another"] = {"status": "HEALTHY", "worker_id": "another"}
    reader, deployed = counters_of(dashboard)
    beating.update(sorted(deployed.proxies())[1:])
    reading = reader.read(deployed)
    assert clock.now_s >= counters.PATIENCE_S
    assert reading.at_s >= clock.now_s - counters.SLOW_POLL_S


def test_a_page_that_is_named_twice_is_counted_once():
    target = RayServeTarget(ADDRESS, metrics_url=f"{HEAD}, {NODE},{HEAD}")
    assert target._metrics_pages() == [HEAD, NODE]
