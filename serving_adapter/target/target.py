"""A target: a running inference server that is observed and reconfigured over gRPC.

It speaks the Open Inference Protocol with Triton's statistics, model-configuration and model-repository
extensions: our own server does, and so does a stock Triton. A server without them, such as MLServer, can be
observed by its metrics page, and not be changed.

| a change of | by our own server | by a stock Triton |
|---|---|---|
| `instances` alone | in place | in place: processes are started beside those that serve, or some are ended |
| anything else | in place | all of it in one new load: new processes take over, the old ones drain and end |

On a machine of few cores, instances beyond those that served before start in turns (`starts_at_once`).

A change that fails leaves the configuration that was in force before: it is loaded again, and verified.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter import resources
from serving_adapter.model_configuration import (
    KNOBS,
    SERVER_NAME,
    Configuration,
    Limits,
    all_instances,
    as_json,
    as_pbtxt,
    edited,
    knob_values,
    parse_pbtxt,
)
from serving_adapter.target import change as target_change
from serving_adapter.target import checks as target_checks
from serving_adapter.target.connection import Connection
from serving_adapter.target.counters import Counters, advertised_page, open_page
from serving_adapter.target.error import LostInChange, NotPutBack, RequestsRefused, TargetError, TargetLost
from serving_adapter.target.reading import Reading, parse_statistics

LOOKS_AT_ITEMS = 5
_NO_MODEL = "no-model-but-a-question-whether-models-may-be-loaded"
_MAY_LOAD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)

__all__ = [
    "Applied",
    "LostInChange",
    "NotPutBack",
    "RequestsRefused",
    "Target",
    "TargetError",
    "TargetLost",
]


class Applied(NamedTuple):
    """How a configuration came into force."""

    in_place: bool  # no process was started but new instances
    cold_instances: int  # processes whose first requests are slow
    changed: bool = True  # False: it was in force already


class Target:
    """One model of one server. `connect()` first; every failure is a `TargetError` of one sentence."""

    def __init__(
        self,
        address: str,
        model: str | None = None,
        metrics_url: str | None = None,
        control_key: str | None = None,
        tls_ca: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self.address = address
        self.host = _host(address)
        self.model = model or ""
        self.metrics_url = metrics_url
        self.timeout_s = timeout_s
        self.server = ""  # its name and version
        self.notes: list[str] = []  # what the target cannot tell, one sentence each, to be said once
        self.calls: Counter[str] = Counter()  # gRPC calls by method, and fetches of the metrics page
        self._named_model, self._named_metrics_url = model, metrics_url
        self._control_key, self._tls_ca = control_key, tls_ca
        self._connection: Connection | None = None
        self._counters: Counters | None = None
        # Instances of a stock Triton that may start together: half of the cores are left to those that serve.
        self.starts_at_once = max(1, resources.cores() // 2) if self.is_local else None
        self._extensions: frozenset[str] = frozenset()
        # Preferred batch sizes above a smaller max_batch_size must go, and come back with a larger one.
        self._found: ModelConfig | None = None
        self._broken_off = False  # a change by Ctrl-C, which the server may go on with

    @property
    def is_local(self) -> bool:
        """True if the server runs on this machine, so that this machine's processors are its own."""
        return self.host in ("localhost", "::1", "0.0.0.0", "::") or self.host.startswith("127.")

    @property
    def is_rrl_serve(self) -> bool:
        """True for this project's own server."""
        return self.server.startswith(SERVER_NAME)

    @property
    def in_place_knobs(self) -> frozenset[str]:
        """The knobs that change without a reload of the model."""
        return frozenset(KNOBS) if self.is_rrl_serve else frozenset({"instances"})

    @property
    def glance_is_cheap(self) -> bool:
        """True if the server can be asked for a few counters; a stock Triton writes out its whole page."""
        page = self._counters.page if self._counters else None
        return page is not None and page.is_filtered

    def connect(self, control: bool = True, counters: bool = True) -> None:
        """Finds the server, its model and its metrics page; with `control`, makes sure it may be changed.

        Nothing is changed by it: what cannot be tuned is refused before. Without `counters` nothing can be
        read, and its metrics page may be away.
        """
        self.close()
        self._connection = Connection(
            self.address, self.is_local, self.timeout_s, self.calls, self._control_key, self._tls_ca
        )
        try:
            self._find(control, counters)
            if counters:
                self.read()
        except TargetError:
            self.close()
            raise
        self._connection.known = True
        if self._counters is not None:
            self._counters.known = True

    def _find(self, control: bool, counters: bool) -> None:
        metadata = self._call("ServerMetadata", messages.ServerMetadataRequest())
        self.server = f"{metadata.name} {metadata.version}".strip()
        self._extensions = frozenset(metadata.extensions)
        advertised = advertised_page(self.host, self._extensions)
        self.metrics_url = self._named_metrics_url or advertised
        self._check_extensions(control)
        self.model = self._named_model = self._choose_model()  # it stays so when it is connected anew
        config = self._model_config()
        self._remember(config)
        self.notes = target_checks.notes(config, self.server)
        if counters:
            self._find_counters(advertised=advertised is not None)
        if control:
            target_checks.check_tunable(config, self.address, self._other_configs)
            self.check_control()

    def _check_extensions(self, control: bool) -> None:
        server = f"{self.server or 'the server'} at {self.address}"
        target_checks.check_extensions(server, self._extensions, control, self.metrics_url is not None)

    def close(self) -> None:
        for part in (self._connection, self._counters):
            if part is not None:
                part.close()
        self._connection = self._counters = None

    def knobs(self) -> dict[str, Limits]:
        """The knobs that this model has, and the limits of each."""
        return {name: KNOBS[name] for name in self.configuration()}

    def configuration(self) -> dict[str, int]:
        """The configuration in force; empty where the server does not tell."""
        return target_checks.tunable(self._model_config())

    def model_config(self, configuration: Configuration) -> str:
        """The model's ModelConfig as JSON with these knobs set: what `apply` sends."""
        return as_json(self._edited(self._model_config(), configuration))

    def config_pbtxt(self, configuration: Configuration | None = None) -> str:
        """The text of the model's `config.pbtxt` with these knobs set; without any, as it is in force."""
        config = self._model_config()
        return as_pbtxt(config if configuration is None else self._edited(config, configuration))

    def requests_hold_several_items(self) -> bool:
        """True if requests were seen that a smaller max_batch_size may refuse: Triton answers none of more
        items than that, and counts none of them either; our own server runs such a request alone.

        Triton seems to count items and requests at once, but does not say that it must: one look that sees as
        many of both is enough.
        """
        return not self.is_rrl_serve and all(self._items_beyond_requests() > 0 for _ in range(LOOKS_AT_ITEMS))

    def refuses_more_than_found(self, configuration: Configuration) -> str:
        """In one sentence, that it does; empty where no request is refused that was not before."""
        found = self._found_knobs.get("max_batch_size", 0)
        size = configuration.get("max_batch_size", found)
        if self.is_rrl_serve or size >= found:
            return ""
        return (
            f"max_batch_size was {found} and is {size}: no request seen held several items, but one of more "
            f"than {size} is refused from now on, and Triton counts none of them"
        )

    @property
    def _found_knobs(self) -> dict[str, int]:
        return {} if self._found is None else knob_values(self._found)

    def _items_beyond_requests(self) -> int:
        """Answered so far; without those from Triton's response cache, whose items are not counted."""
        statistics = self._call("ModelStatistics", messages.ModelStatisticsRequest(name=self.model))
        items = sum(each.inference_count for each in statistics.model_stats)
        of = [each.inference_stats for each in statistics.model_stats]
        return items - sum(each.success.count - each.cache_hit.count for each in of)

    def why_not_tunable(self) -> str:
        """In one sentence; empty if the model can be tuned as far as its configuration tells."""
        try:
            self._check_extensions(control=True)
            target_checks.check_tunable(self._model_config(), self.address, self._other_configs)
        except TargetLost:
            raise
        except TargetError as error:
            return str(error)
        return ""

    def was_found_as(self, config_pbtxt: str) -> None:
        """What the knobs bring with them is as in this text, which `config_pbtxt` once told."""
        self._found = parse_pbtxt(config_pbtxt)

    def check_control(self) -> None:
        """Asks for a model that is not there: how that fails tells whether loading is allowed at all.

        To load the model's own configuration again would change something: Triton loads a model anew if its
        files have changed since, and the cache that Python leaves among them is enough.
        """
        request = messages.RepositoryModelLoadRequest(model_name=_NO_MODEL)
        self._open_connection.fails_by("RepositoryModelLoad", request, _MAY_LOAD)

    def apply(self, configuration: Configuration) -> Applied:
        """Puts these knobs in force, the others as they are; returns when the server is ready with them.

        What is in force already is not sent, but after a change that Ctrl-C broke off. Where the change
        fails, the configuration before it is put back. RequestsRefused, and nothing is changed, where the
        server would refuse requests of several items with it: whether there are any is asked before every
        change to a max_batch_size below the one found, as those that a run began with may not be those of
        later.
        """
        before = self._model_config()
        present = target_checks.tunable(before)
        unknown = set(configuration) - set(present)
        if unknown:
            raise TargetError(
                f"model {self.model!r} at {self.address} has no knob {', '.join(sorted(unknown))}; "
                f"it has {', '.join(present) or 'none'}"
            )
        wanted = self._edited(before, configuration)
        changes = {name: value for name, value in configuration.items() if present[name] != value}
        if not changes and not self._broken_off:
            return Applied(in_place=True, cold_instances=0, changed=False)
        self._check_bears_items(changes)
        in_place = set(changes) <= self.in_place_knobs
        at_once = None if self.is_rrl_serve else self.starts_at_once
        to_load = target_change.stages(before, wanted, in_place, at_once)
        try:
            target_change.put_in_force(self._open_connection, before, to_load, changes)
        except KeyboardInterrupt:
            self._broken_off = True
            raise
        finally:  # a change that failed has loaded what was before
            if self._counters is not None:
                self._counters.loaded()
        self._broken_off = False
        return self._applied(changes, before, wanted)

    def read(self) -> Reading:
        """All counters of the model, now."""
        return self._open_counters.read()

    def glance(self) -> Reading:
        """Arrivals, completions, failures and backlog only: the cheapest call, to poll with."""
        return self._open_counters.glance()

    def _check_bears_items(self, changes: Configuration) -> None:
        size, least = changes.get("max_batch_size", math.inf), self._found_knobs.get("max_batch_size", 0)
        if size < least and self.requests_hold_several_items():
            raise RequestsRefused(
                f"max_batch_size {size} is below the {least} it was found with, and some requests held "
                "several items, of which Triton answers none that holds more than that"
            )

    def _applied(self, changes: Configuration, before: ModelConfig, after: ModelConfig) -> Applied:
        if self.is_rrl_serve:
            return Applied(in_place=True, cold_instances=0)
        instances = all_instances(after)
        began_again = self._counters is not None and self._counters.began_again()
        if not set(changes) <= self.in_place_knobs or began_again:
            return Applied(in_place=False, cold_instances=instances)
        return Applied(in_place=True, cold_instances=max(0, instances - all_instances(before)))

    # What the server tells

    @property
    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        return self._connection

    @property
    def _open_counters(self) -> Counters:
        if self._counters is None:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        return self._counters

    def _call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        return self._open_connection.call(method, request, timeout_s)

    def _choose_model(self) -> str:
        if self._named_model is not None and self._is_ready(self._named_model):
            return self._named_model
        index = self._call("RepositoryIndex", messages.RepositoryIndexRequest()).models
        # MLServer writes State.READY.
        ready = sorted({entry.name for entry in index if entry.state.rpartition(".")[2] == "READY"})
        if self._named_model is not None:
            state = "is not ready" if self._named_model in {entry.name for entry in index} else "is not there"
            raise TargetError(
                f"model {self._named_model!r} {state} at {self.address}; ready: {', '.join(ready) or 'none'}"
            )
        if not ready:
            raise TargetError(f"no model is ready at {self.address}; load one")
        if len(ready) > 1:
            raise TargetError(f"{self.address} serves several models; name one of {', '.join(ready)}")
        return ready[0]

    def _is_ready(self, model: str) -> bool:
        try:
            return self._call("ModelReady", messages.ModelReadyRequest(name=model)).ready
        except TargetError:
            return False

    def _model_config(self, name: str = "") -> ModelConfig:
        if "model_configuration" not in self._extensions:
            return ModelConfig(name=self.model)
        return target_change.model_config(self._open_connection, name or self.model)

    def _other_configs(self) -> Iterator[ModelConfig]:
        """Of the other models that are ready."""
        index = self._call("RepositoryIndex", messages.RepositoryIndexRequest(ready=True)).models
        for name in sorted({entry.name for entry in index} - {self.model}):
            with suppress(TargetError):  # it may go at any moment
                yield self._model_config(name)

    def _edited(self, config: ModelConfig, configuration: Configuration) -> ModelConfig:
        """A copy with these knobs set that can be sent."""
        base = ModelConfig()
        base.CopyFrom(config)
        found = config if self._found is None else self._found
        if config.HasField("dynamic_batching") and found.HasField("dynamic_batching"):
            base.dynamic_batching.preferred_batch_size[:] = found.dynamic_batching.preferred_batch_size
            base.max_batch_size = found.max_batch_size
            if config.max_batch_size:
                configuration = {"max_batch_size": config.max_batch_size, **configuration}
        try:
            wanted = edited(base, configuration, knob_values(found))
            as_json(wanted)
        except ValueError as error:
            raise TargetError(f"cannot configure model {self.model!r}: {error}") from None
        return wanted

    def _remember(self, config: ModelConfig) -> None:
        target_checks.tunable(config)  # a configuration that cannot be read is told at once
        if self._found is None:
            self._found = config

    # Counters

    def _find_counters(self, advertised: bool) -> None:
        """A named metrics page must be one; an advertised one may be out of reach."""
        statistics = self._read_statistics if "statistics" in self._extensions else None
        page = None
        try:
            if self.metrics_url is not None:
                page = open_page(
                    self.metrics_url, self.model, self.timeout_s, self._tls_ca, self.calls, advertised
                )
        except TargetError as error:
            if self._named_metrics_url is not None or statistics is None:
                raise
            self.notes.append(f"the advertised metrics page is left out: {error}")
        self._counters = Counters(self.address, statistics, page, self.is_local, self.is_rrl_serve)
        self._counters.check_page()
        self.notes += target_checks.notes_on_counters(
            self.address, self.server, has_page=page is not None, has_statistics=statistics is not None
        )

    def _read_statistics(self) -> Reading:
        at_s = time.monotonic()
        answer = self._call("ModelStatistics", messages.ModelStatisticsRequest(name=self.model))
        return parse_statistics(answer.model_stats, at_s)


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TargetError(f"the target must be HOST:PORT, e.g. localhost:8500, got {address!r}")
    return host.strip("[]")
