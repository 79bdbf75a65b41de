"""One deployment of a stock Ray Serve application as a target: `ray://HOST:DASHBOARD_PORT`.

The application is tuned as it was deployed, by `serve deploy`: what its authors expose is changed in the
configuration that Ray has of it. Nothing is installed on the cluster, and Ray is not needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from serving_adapter.address import ServerAddress
from serving_adapter.http_exchange import parts_of
from serving_adapter.knob_limits import Configuration, Limits
from serving_adapter.target.configuration_files import ConfigurationFiles
from serving_adapter.target.error import (
    ModelAbsent,
    NoSuchKnob,
    RequestsRefused,
    TargetError,
    TargetLost,
)
from serving_adapter.target.ray_serve import checks, rollout
from serving_adapter.target.ray_serve.changed_share import ChangedShare
from serving_adapter.target.ray_serve.counters import RayCounters
from serving_adapter.target.ray_serve.dashboard import Dashboard
from serving_adapter.target.ray_serve.deployed import (
    IN_PLACE_FIELDS,
    LIMITS,
    MAX_ONGOING,
    Deployed,
    find_deployment,
)
from serving_adapter.target.ray_serve.edited_config import (
    FILE_NAME,
    FoundOverrides,
    KeptApplication,
    as_yaml,
    edited,
)
from serving_adapter.target.reading import Reading
from serving_adapter.target.target import Applied, Room, Target

TRIED_WITH = "2.60."


class RayServeTarget(Target):
    """A deployment named by itself, or as `APPLICATION#DEPLOYMENT`; the only one where none is named."""

    def __init__(
        self,
        address: str,
        model: str | None = None,
        metrics_url: str | None = None,
        control_key: str | None = None,
        tls_ca: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """`metrics_url`: the nodes' metrics pages, with commas between, where Ray's own list is of no use.

        `control_key`: the cluster's token, where it has one (RAY_AUTH_MODE=token).
        """
        super().__init__(address, model or "")
        self._named, self._token, self._tls_ca, self._timeout_s = model, control_key, tls_ca, timeout_s
        named = (url.strip() for url in (metrics_url or "").split(","))
        self._named_pages = list(dict.fromkeys(filter(None, named)))  # a page named twice counts once
        for url in self._named_pages:
            if parts_of(url) is None:
                raise TargetError(f"a metrics page must be like http://HOST:PORT/metrics, got {url!r}")
        self._dashboard = self._new_dashboard()
        self.address = self._dashboard.address
        self._counters: RayCounters | None = None  # they go on over connections
        self._is_open = False  # they may be read
        self._found: FoundOverrides | None = None
        self._deployed: Deployed | None = None  # as it was last told
        self._cpus_by_node: list[float] = []
        self._changed = ChangedShare()

    # --- connecting --------------------------------------------------------------------------------

    def connect(self, control: bool = True, counters: bool = True) -> None:
        was_connected = self._found is not None
        self.close()
        self._dashboard = self._new_dashboard(known=was_connected)
        version = self._dashboard.version()
        self.server = f"Ray Serve {version}"
        try:
            deployed = find_deployment(self._dashboard.applications(), self._named, self.address)
        except TargetLost:
            raise
        except TargetError as error:
            raise (ModelAbsent if was_connected else TargetError)(str(error)) from None
        self.model, self._named = deployed.name, deployed.label
        self._deployed = deployed
        if control:
            self.check_control()
        self._cpus_by_node = list(self._dashboard.cpus_by_node().values())
        self.cores = round(sum(self._cpus_by_node)) or None
        self.notes = checks.notes(deployed)
        if not version.startswith(TRIED_WITH):
            self.notes.append(f"the cluster has Ray {version}, and this was tried with {TRIED_WITH}* alone")
        if counters:
            self._connect_counters(deployed)
        if self._found is None:
            self._found = FoundOverrides(deployed)
        self._dashboard.known = True

    def _connect_counters(self, deployed: Deployed) -> None:
        if self._counters is None:
            self._counters = RayCounters(deployed, self._metrics_pages, self.calls, self._timeout_s)
        counters = self._counters
        hosts = [urlsplit(page).hostname for page in self._metrics_pages()]
        self.is_local = counters.is_local = all(host and ServerAddress(host, 0).is_local for host in hosts)
        reading = counters.look()
        self._is_open = counters.known = True
        bounds_s = () if reading.latency is None else reading.latency.bounds_s
        self.notes += checks.notes_on_counters(deployed, counters.by_proxies, bounds_s, counters.out_of_reach)

    def close(self) -> None:
        self._is_open = False

    def _new_dashboard(self, known: bool = False) -> Dashboard:
        return Dashboard(self.address, self._timeout_s, self.calls, self._token, self._tls_ca, known)

    def _metrics_pages(self) -> list[str]:
        return self._named_pages or [f"http://{place}/metrics" for place in self._dashboard.metrics_pages()]

    # --- what it is --------------------------------------------------------------------------------

    @property
    def in_place_knobs(self) -> frozenset[str]:
        homes = {} if self._deployed is None else self._deployed.homes
        return frozenset(knob for knob, home in homes.items() if home.field in IN_PLACE_FIELDS)

    def knobs(self) -> Mapping[str, Limits]:
        deployed = self._now()
        values = self._tuned(deployed)
        limits = {knob: LIMITS[knob] for knob in values}
        if "instances" in limits:
            low, high = limits["instances"]
            limits["instances"] = Limits(low, max(low, min(high, self._most(deployed)), values["instances"]))
        if deployed.threads_are_cpus() and self._cpus_by_node:
            most = max(int(max(self._cpus_by_node)), values["intra_op_threads"])
            limits["intra_op_threads"] = Limits(1, most)
        return limits

    def room(self) -> Room | None:
        if not self._cpus_by_node:
            return None
        cpus = int(sum(self._cpus_by_node))
        most = min(self._most(self._now()), 2 * cpus)  # replicas may hold a part of a CPU, or none
        return Room(max(1, most), int(max(self._cpus_by_node)))

    def _most(self, deployed: Deployed) -> int:
        """Replicas that find a place, with as few processors as they may hold."""
        cpus = 1 if deployed.threads_are_cpus() else deployed.cpus
        return checks.room_for(cpus, self._cpus_by_node, deployed.cpus_of_others())

    def configuration(self) -> dict[str, int]:
        return self._tuned(self._now())

    def _tuned(self, deployed: Deployed) -> dict[str, int]:
        """Its knobs. Replicas that take fewer requests at once only hide how long these wait for them."""
        hides = () if deployed.is_ingress() else (MAX_ONGOING,)
        return {knob: value for knob, value in deployed.values().items() if knob not in hides}

    def check_control(self) -> None:
        if why_not := self.why_not_tunable():
            raise TargetError(why_not)

    def why_not_tunable(self) -> str:
        return checks.why_not_tunable(self._now(), self.address)

    def _now(self) -> Deployed:
        """What the dashboard tells of the deployment now."""
        if self._deployed is None:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        self._deployed = replace(self._deployed, told=self._dashboard.applications())
        self._deployed.check_there()
        return self._deployed

    # --- changing it -------------------------------------------------------------------------------

    def apply(self, configuration: Configuration) -> Applied:
        """RequestsRefused, with nothing changed, for more replicas than find a place on the nodes."""
        before = self._now()
        if why_not := checks.why_not_tunable(before, self.address):
            raise TargetError(why_not)
        present = self._tuned(before)
        if unknown := sorted(set(configuration) - set(present)):
            raise NoSuchKnob(
                f"{before.label} at {self.address} has no knob {', '.join(unknown)}; it has "
                f"{', '.join(present) or 'none'}"
            )
        replaced = {name: present[name] for name in configuration}
        changes = {name: value for name, value in configuration.items() if present[name] != value}
        if not changes:
            if before.is_changing():  # a change that was broken off goes on
                self._deployed = rollout.wait_until_in_force(self._dashboard, before, before.values())
            return Applied(in_place=True, cold_instances=0, changed=False, replaced=replaced)
        self._check_room(before, changes)
        config = edited(before, changes, self._found)
        wanted = before.values() | changes
        self.before_change(present, present | changes)
        self._deployed = rollout.put_in_force(self._dashboard, before, config, wanted)
        in_place = {before.homes[knob].field for knob in changes} <= IN_PLACE_FIELDS
        cold = wanted["instances"] - (present["instances"] if in_place else 0)
        return Applied(in_place, max(0, cold), replaced=replaced)

    def _check_room(self, before: Deployed, changes: Configuration) -> None:
        """Replicas that all run have a place, unless there are to be more or larger ones."""
        if before.in_force() and not {"instances", "intra_op_threads"} & changes.keys():
            return
        cpus = before.cpus
        if before.threads_are_cpus():
            cpus = changes.get("intra_op_threads", cpus)
        instances = changes.get("instances", before.values()["instances"])
        self._cpus_by_node = list(self._dashboard.cpus_by_node().values())
        if why_not := checks.why_no_room(instances, cpus, self._cpus_by_node, before.cpus_of_others()):
            raise RequestsRefused(why_not)

    # --- reading it --------------------------------------------------------------------------------

    def read(self) -> Reading:
        reading = self._open_counters.read(self._now())
        share = self._changed.until(self._now(), self._dashboard.cpus_by_node)
        return replace(reading, cluster_changed_share=share)

    def glance(self) -> Reading:
        return self._open_counters.glance()

    @property
    def _open_counters(self) -> RayCounters:
        if self._counters is None or not self._is_open:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        return self._counters

    # --- its configuration as files ----------------------------------------------------------------

    def config_text(self, configuration: Configuration | None = None) -> str:
        """What `serve deploy` takes: all applications, as the file replaces all of them."""
        return as_yaml(self._now(), configuration)

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        return {FILE_NAME: self.config_text(configuration)}

    @staticmethod
    def kept(text: str) -> ConfigurationFiles:
        return KeptApplication(text)
