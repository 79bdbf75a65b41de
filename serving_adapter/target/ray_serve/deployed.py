"""One deployment of one Serve application, in what the dashboard tells: its knobs, and what may be tuned.

| knob | in the deployment's configuration | a change of it |
|---|---|---|
| `instances` | `num_replicas` | in place |
| `intra_op_threads` | `user_config.intra_op_threads` | in place: `reconfigure` is called |
| | else `ray_actor_options.num_cpus`, a replica's OMP_NUM_THREADS | new replicas |
| `max_batch_size` | `user_config.max_batch_size` | in place: `reconfigure` is called |
| `max_queue_delay_us` | `user_config.batch_wait_timeout_s` | in place: `reconfigure` is called |
| `max_ongoing_requests` | `max_ongoing_requests`, of each replica | in place |

What `user_config` holds is up to the application's authors, whose `reconfigure` hands size and wait on to
`@serve.batch`. A knob that they do not expose is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from serving_adapter.knob_limits import KNOBS_ON_CLUSTER, Limits
from serving_adapter.target.error import ModelAbsent, TargetError

USER_CONFIG, ACTOR_OPTIONS = "user_config", "ray_actor_options"
MAX_ONGOING = "max_ongoing_requests"
_KNOWN = ("instances", "intra_op_threads", "max_batch_size", "max_queue_delay_us")
LIMITS = {name: KNOBS_ON_CLUSTER[name] for name in _KNOWN} | {MAX_ONGOING: Limits(1, 10_000)}
DECLARATIVE, DELETING, DEPLOYING = "declarative", "DELETING", "DEPLOYING"
RUNNING, HEALTHY = "RUNNING", "HEALTHY"
_US = 1e-6


class Home(NamedTuple):
    """Where a knob stands in a deployment's configuration."""

    field: str
    key: str = ""  # within the field; empty: the field itself is the value


IN_PLACE_FIELDS = frozenset({"num_replicas", MAX_ONGOING, USER_CONFIG})
_PLAIN = {"instances": "num_replicas", MAX_ONGOING: MAX_ONGOING}
_IN_USER_CONFIG = {
    "intra_op_threads": "intra_op_threads",
    "max_batch_size": "max_batch_size",
    "max_queue_delay_us": "batch_wait_timeout_s",
}


@dataclass(frozen=True)
class Deployed:
    """A deployment in the answer of the dashboard; nothing of it is checked before it is asked for."""

    told: Mapping[str, Any]  # the whole answer
    application: str
    deployment: str

    @property
    def label(self) -> str:
        """As Ray names it."""
        return f"{self.application}#{self.deployment}"

    @property
    def name(self) -> str:
        """The shortest name that no other deployment has."""
        apps = self.told["applications"].values()
        sharing = sum(self.deployment in app.get("deployments", {}) for app in apps)
        return self.deployment if sharing == 1 else self.label

    @property
    def app(self) -> Mapping[str, Any]:
        """What is told of the application; ModelAbsent where it has gone."""
        self.check_there()
        told: Mapping[str, Any] = self.told["applications"][self.application]
        return told

    def check_there(self) -> None:
        """ModelAbsent where the application has gone."""
        app = self.told["applications"].get(self.application)
        if app is None or app.get("status") == DELETING:
            raise ModelAbsent(f"the application {self.application!r} is not deployed any more")

    @property
    def state(self) -> Mapping[str, Any]:
        """What is told of the deployment; empty while the application has none."""
        told: Mapping[str, Any] = self.app.get("deployments", {}).get(self.deployment, {})
        return told

    @property
    def effective(self) -> Mapping[str, Any]:
        """The deployment's configuration in force, what the code says and what overrides it."""
        told: Mapping[str, Any] = self.state.get("deployment_config", {})
        return told

    @property
    def override(self) -> Mapping[str, Any]:
        """What the submitted configuration says of the deployment; empty where it leaves all to the code."""
        return _override(self.app.get("deployed_app_config") or {}, self.deployment)

    @property
    def user_config(self) -> Mapping[str, Any]:
        return _mapping(self.effective.get(USER_CONFIG))

    @property
    def cpus(self) -> float:
        """The processors that each replica holds."""
        return float(_mapping(self.effective.get(ACTOR_OPTIONS)).get("num_cpus", 1) or 0)

    def cpus_of_others(self) -> float:
        """The processors that the replicas of all other deployments hold."""
        return sum(
            float(state.get("required_resources", {}).get("CPU", 0)) * state.get("target_num_replicas", 0)
            for name, app in self.told["applications"].items()
            for deployment, state in app.get("deployments", {}).items()
            if (name, deployment) != (self.application, self.deployment)
        )

    @cached_property
    def homes(self) -> dict[str, Home]:
        """The knobs that the deployment has, and where they stand."""
        effective, user_config = self.effective, self.user_config
        homes = {knob: Home(field) for knob, field in _PLAIN.items() if _is_value(knob, effective.get(field))}
        for knob, key in _IN_USER_CONFIG.items():
            if _is_value(knob, user_config.get(key)):
                homes[knob] = Home(USER_CONFIG, key)
        if "intra_op_threads" not in homes and self._cpus_are_threads():
            homes["intra_op_threads"] = Home(ACTOR_OPTIONS, "num_cpus")
        return {knob: homes[knob] for knob in LIMITS if knob in homes}

    def threads_are_cpus(self) -> bool:
        """True where a replica's threads are the processors that it holds."""
        return self.homes.get("intra_op_threads") == Home(ACTOR_OPTIONS, "num_cpus")

    def values(self) -> dict[str, int]:
        """The knobs with the values in force; empty while the application has no such deployment."""
        if not self.effective:
            return {}
        return {knob: _as_knob(knob, self._at(home)) for knob, home in self.homes.items()}

    def _at(self, home: Home) -> Any:
        if home.key == "num_cpus":
            return self.cpus
        value = self.effective.get(home.field)
        return _mapping(value).get(home.key) if home.key else value

    def _cpus_are_threads(self) -> bool:
        """Ray sets OMP_NUM_THREADS to a replica's processors, unless somebody else has set it."""
        options = _mapping(self.effective.get(ACTOR_OPTIONS))
        config = _mapping(self.app.get("deployed_app_config"))
        set_by_others = any(
            "OMP_NUM_THREADS" in _mapping(_mapping(of.get("runtime_env")).get("env_vars"))
            for of in (options, config)
        )
        in_bundles = bool(self.override.get("placement_group_bundles"))
        return self.cpus >= 1 and self.cpus.is_integer() and not set_by_others and not in_bundles

    def is_changing(self) -> bool:
        """True from a PUT on, until Ray has made of it what it can."""
        return self.app.get("status") in (DEPLOYING, "NOT_STARTED")

    def in_force(self) -> bool:
        """True once all replicas run with the configuration. Another deployment may have failed meanwhile."""
        running = sum(replica.get("state") == RUNNING for replica in self.state.get("replicas", []))
        is_whole = running == self.state.get("target_num_replicas")
        return not self.is_changing() and self.state.get("status") == HEALTHY and is_whole

    def is_ingress(self) -> bool:
        """True if the proxies hand the application's requests to it, so that users wait for its answers."""
        if self.app.get("route_prefix") is None:
            return False
        ingress = _mapping(self.app.get("deployment_topology")).get("ingress_deployment")
        return ingress == self.deployment if ingress else len(self.app.get("deployments", {})) == 1

    def replicas(self) -> dict[str, str]:
        """The ids of the processes that run the deployment, and of their nodes (empty: not told)."""
        return {
            str(replica["worker_id"]): str(replica.get("node_id") or "")
            for replica in self.state.get("replicas", [])
            if replica.get("state") == RUNNING and replica.get("worker_id")
        }

    def proxies(self) -> frozenset[str]:
        """The ids of the processes that hand requests to applications."""
        return frozenset(
            str(proxy["worker_id"])
            for proxy in self.told.get("proxies", {}).values()
            if proxy.get("status") == HEALTHY and proxy.get("worker_id")
        )


def find_deployment(told: Mapping[str, Any], named: str | None, address: str) -> Deployed:
    """The deployment named `NAME` or `APPLICATION#NAME`, or the only one; TargetError names what there is."""
    apps = {name: app for name, app in told["applications"].items() if app.get("status") != DELETING}
    if not apps:
        raise TargetError(f"no Serve application runs at {address}; deploy one with serve deploy")
    all_of = [Deployed(told, app, name) for app in apps for name in apps[app].get("deployments", {})]
    fitting = [each for each in all_of if named in (None, each.deployment, each.label)]
    if not fitting:  # an application's only deployment may be named by the application
        fitting = [each for each in all_of if named == each.application]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(each.label for each in all_of) or "none"
    states = ", ".join(f"{name} is {app.get('status')}" for name, app in apps.items())
    if not fitting:
        wanted = "no deployment" if named is None else f"no deployment {named!r}"
        raise TargetError(f"{address} has {wanted}; deployments: {there} ({states})")
    raise TargetError(f"{address} has several deployments; name one with --deployment: {there}")


def override_in(config: Mapping[str, Any], application: str, deployment: str) -> Mapping[str, Any]:
    """What a whole configuration, as a PUT takes it, says of a deployment; empty where it says nothing."""
    apps = {name_of(app): app for app in config["applications"]}
    return _override(apps.get(application, {}), deployment)


def name_of(app: Mapping[str, Any]) -> str:
    """The name of an application in a configuration."""
    return str(app.get("name", "default"))


def _override(app: Mapping[str, Any], deployment: str) -> Mapping[str, Any]:
    for entry in app.get("deployments", []):
        if entry.get("name") == deployment:
            told: Mapping[str, Any] = entry
            return told
    return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_value(knob: str, value: Any) -> bool:
    """True for what the knob can have: seconds for a delay, a whole number for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return value >= 0 if knob == "max_queue_delay_us" else isinstance(value, int) and value >= 1


def _as_knob(knob: str, value: Any) -> int:
    return round(value / _US) if knob == "max_queue_delay_us" else int(value)


def as_config(knob: str, value: int) -> int | float:
    """A knob's value as the deployment's configuration has it."""
    return round(value * _US, 9) if knob == "max_queue_delay_us" else value
