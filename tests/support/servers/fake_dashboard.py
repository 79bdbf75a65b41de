"""A dashboard of Ray in this process, of the two applications that a real one told of."""

from __future__ import annotations

import copy
import itertools
import json

from tests.support import CHECKOUT

RECORDED = CHECKOUT / "tests" / "serving_adapter" / "target" / "ray_serve" / "recorded"
ADDRESS = "ray://127.0.0.1:8265"
LOST_REPLICA = {
    "status": "UNHEALTHY",
    "status_trigger": "HEALTH_CHECK_FAILED",
    "message": "A replica's health check failed. This deployment will be UNHEALTHY until the replica "
    "recovers or a new deploy happens.",
}
"""What is told of a deployment from then on, until it has all of its replicas."""


class FakeDashboard:
    """Takes what is put as Ray does. More than `most` replicas fail, and others may do more meanwhile."""

    address = ADDRESS

    def __init__(self):
        self.told = json.loads((RECORDED / "applications.json").read_text())
        self.code = {
            name: copy.deepcopy(state["deployment_config"])
            for app in self.told["applications"].values()
            for name, state in app["deployments"].items()
        }
        self.put = []
        self.most = 100
        self.refuses = self.loses = None  # a PUT; one that is lost is taken all the same
        self.meanwhile = lambda apps: None  # after the first PUT
        self.loses_replica_in = set()  # a PUT, by its number from 1 on
        replicas = self.told["applications"]["numbers"]["deployments"]["Doubled"]["replicas"]
        self.nodes = {replica["node_id"]: 2.0 for replica in replicas}  # their processors
        self.known = False
        self._back_after = 0  # looks, of the replica that is lost
        self._ids = itertools.count()

    def version(self):
        return "2.60.0"

    def metrics_pages(self):
        return []

    def cpus_by_node(self):
        return dict(self.nodes)

    def applications(self):
        told = copy.deepcopy(self.told)
        if self._back_after:
            self._back_after -= 1
            if not self._back_after:
                self.recover()
        return told

    def put_applications(self, config):
        self.put.append(copy.deepcopy(config))
        if self.refuses is not None:
            raise self.refuses
        apps, configs = self.told["applications"], {app["name"]: app for app in config["applications"]}
        for name in apps.keys() - configs.keys():
            del apps[name]
        for name, app in configs.items():
            self._deploy(apps[name], app)
        if len(self.put) in self.loses_replica_in:
            self.lose_replica()
        if len(self.put) == 1:
            self.meanwhile(apps)
            if self.loses is not None:
                raise self.loses

    def lose_replica(self, back_after=3):
        """Of the deployment `Doubled`; another one runs after so many looks, or never where that is 0."""
        app = self.told["applications"]["numbers"]
        state = app["deployments"]["Doubled"]
        app["status"] = "UNHEALTHY"
        state.update(LOST_REPLICA, replicas=state["replicas"][1:])
        self._back_after = back_after

    def recover(self):
        app = self.told["applications"]["numbers"]
        state = app["deployments"]["Doubled"]
        app["status"] = "RUNNING"
        missing = state["target_num_replicas"] - len(state["replicas"])
        replicas = [*state["replicas"], *self._replicas(missing)]
        state.update(status="HEALTHY", status_trigger="UNSPECIFIED", message="", replicas=replicas)

    def _replicas(self, count):
        return [{"state": "RUNNING", "worker_id": f"worker {next(self._ids)}"} for _ in range(count)]

    def _deploy(self, app, config):
        app["deployed_app_config"], app["status"] = copy.deepcopy(config), "RUNNING"
        entries = {entry["name"]: copy.deepcopy(entry) for entry in config.get("deployments", [])}
        for name, state in app["deployments"].items():
            state["deployment_config"] = self.code[name] | entries.get(name, {})
            state["target_num_replicas"] = count = state["deployment_config"]["num_replicas"]
            state["replicas"] = (state["replicas"] + self._replicas(count))[:count]
            state["status"], state["status_trigger"] = "HEALTHY", "CONFIG_UPDATE_COMPLETED"
            if count > self.most:
                app["status"] = state["status"] = "DEPLOY_FAILED"
                state["status_trigger"], state["message"] = "REPLICA_STARTUP_FAILED", "no memory"
