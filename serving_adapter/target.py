"""A target: a running inference server that is observed and reconfigured over gRPC.

It speaks the Open Inference Protocol with Triton's statistics, model-configuration and model-repository
extensions: our own server does, and so does a stock Triton.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.metrics_page import MetricsPage
from serving_adapter.model_configuration import (
    KNOBS,
    Configuration,
    Limits,
    knob_values,
    with_knobs,
)
from serving_adapter.reading import Reading, parse_statistics
from serving_adapter.resources import Gpus, cpu_times
from serving_adapter.target_error import TargetError, TargetLost, explain

CONTROL_KEY_HEADER = "triton-grpc-protocol-control-key"
APPLY_TIMEOUT_S = 60.0  # a Triton that reloads a model or ends instances takes seconds
READY_POLL_S = 0.05

_NEEDED_EXTENSIONS = {
    "statistics": "it cannot be observed",
    "model_configuration": "its knobs cannot be read",
    "model_repository": "its configuration cannot be changed",
}

__all__ = ["Target", "TargetError", "TargetLost"]


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
        self._named_model, self._named_metrics_url = model, metrics_url
        self._tls_ca = tls_ca
        self._metadata = ((CONTROL_KEY_HEADER, control_key),) if control_key else ()
        self._channel: grpc.Channel | None = None
        self._page: MetricsPage | None = None
        self._gpus: Gpus | None = None
        # As found: those above a smaller max_batch_size must go, and come back with a larger one.
        self._preferred_batch_sizes: tuple[int, ...] | None = None
        self._connected = False

    @property
    def is_local(self) -> bool:
        """True if the server runs on this machine, so that this machine's processors are its own."""
        return self.host in ("localhost", "::1", "0.0.0.0", "::") or self.host.startswith("127.")

    def connect(self, control: bool = True) -> None:
        """Finds the server, its model and its metrics page; with `control`, makes sure it may be changed."""
        self.close()
        try:
            self._connect(control)
        except TargetError:
            self.close()
            raise
        self._connected = True

    def _connect(self, control: bool) -> None:
        self._channel = self._open_channel()
        self._stub = GRPCInferenceServiceStub(self._channel)
        metadata = self._call("ServerMetadata", messages.ServerMetadataRequest())
        self.server = f"{metadata.name} {metadata.version}".strip()
        self._check_extensions(metadata.extensions)
        self.model = self._choose_model()
        self._remember(self._model_config())
        self._find_metrics_page(metadata.extensions)
        if self.is_local:
            self._gpus = Gpus()
        if control:
            self.check_control()
        self.read()

    def close(self) -> None:
        for part in (self._channel, self._page, self._gpus):
            if part is not None:
                part.close()
        self._channel = self._page = self._gpus = None
        self._connected = False

    def knobs(self) -> dict[str, Limits]:
        """The knobs that this model has, and the limits of each."""
        return {name: KNOBS[name] for name in self.configuration()}

    def configuration(self) -> dict[str, int]:
        """The configuration in force."""
        return _tunable(self._model_config())

    def model_config(self, configuration: Configuration) -> str:
        """The model's ModelConfig as JSON with these knobs set: what `apply` sends."""
        return self._override(self._model_config(), configuration)

    def can_control(self) -> bool:
        """True if the server lets its configuration be changed."""
        try:
            self.check_control()
        except TargetLost:
            raise
        except TargetError:
            return False
        return True

    def check_control(self) -> None:
        """Loads the configuration in force again, which changes nothing, to see whether that is allowed."""
        self._load(self._override(self._model_config(), {}))

    def apply(self, configuration: Configuration) -> None:
        """Puts these knobs in force, the others as they are; returns when the server is ready with them."""
        config = self._model_config()
        present = _tunable(config)
        unknown = set(configuration) - set(present)
        if unknown:
            raise TargetError(
                f"model {self.model!r} at {self.address} has no knob {', '.join(sorted(unknown))}; "
                f"it has {', '.join(present) or 'none'}"
            )
        override = self._override(config, configuration)
        if present == present | dict(configuration):
            return
        self._load(override)
        self._wait_until_ready()
        in_force = self.configuration()
        wrong = [
            f"{k}={in_force.get(k)} instead of {v}" for k, v in configuration.items() if in_force.get(k) != v
        ]
        if wrong:
            raise TargetError(f"{self.address} accepted a configuration but reports {', '.join(wrong)}")

    def read(self) -> Reading:
        """All counters of the model, now."""
        return self._with_resources(self._counters(everything=True))

    def glance(self) -> Reading:
        """Arrivals, completions, failures and backlog only: the cheapest call, to poll with."""
        return self._counters(everything=False)

    # Requests to the server

    def _open_channel(self) -> grpc.Channel:
        # Its own pool: a new channel to a server that came back must not inherit the old one's back-off.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self.is_local:
            options.append(("grpc.enable_http_proxy", 0))  # no proxy is between a machine and itself
        if self._tls_ca is None:
            return grpc.insecure_channel(self.address, options=options)
        try:
            with open(self._tls_ca, "rb") as file:
                certificates = file.read()
        except OSError as error:
            raise TargetError(
                f"cannot read the TLS certificates {self._tls_ca!r}: {error.strerror}; give a PEM file"
            ) from None
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(certificates), options=options)

    def _call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        if self._channel is None:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        timeout_s = timeout_s or self.timeout_s
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise explain(error, self.address, method, timeout_s, self._connected) from None

    def _check_extensions(self, extensions: Iterable[str]) -> None:
        missing = {name: meaning for name, meaning in _NEEDED_EXTENSIONS.items() if name not in extensions}
        if missing:
            raise TargetError(
                f"{self.server or 'the server'} at {self.address} lacks the "
                f"extension{'s' * (len(missing) > 1)} {', '.join(missing)}, so "
                f"{' and '.join(missing.values())}; rrl-serve and Triton have them"
            )

    def _choose_model(self) -> str:
        if self._named_model is not None and self._is_ready(self._named_model):
            return self._named_model
        index = self._call("RepositoryIndex", messages.RepositoryIndexRequest()).models
        ready = sorted({entry.name for entry in index if entry.state == "READY"})
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

    def _model_config(self) -> ModelConfig:
        return self._call("ModelConfig", messages.ModelConfigRequest(name=self.model)).config

    def _override(self, config: ModelConfig, configuration: Configuration) -> str:
        if self._preferred_batch_sizes and config.HasField("dynamic_batching"):
            config.dynamic_batching.preferred_batch_size[:] = self._preferred_batch_sizes
        try:
            return with_knobs(config, configuration)
        except ValueError as error:
            raise TargetError(f"cannot configure model {self.model!r}: {error}") from None

    def _remember(self, config: ModelConfig) -> None:
        _tunable(config)  # a configuration that cannot be read is told at once
        if self._preferred_batch_sizes is None:
            preferred = tuple(config.dynamic_batching.preferred_batch_size)
            self._preferred_batch_sizes = () if preferred == (config.max_batch_size,) else preferred

    def _load(self, override: str) -> None:
        request = messages.RepositoryModelLoadRequest(model_name=self.model)
        request.parameters["config"].string_param = override
        self._call("RepositoryModelLoad", request, APPLY_TIMEOUT_S)

    def _wait_until_ready(self) -> None:
        end_s = time.monotonic() + APPLY_TIMEOUT_S
        while not self._call("ModelReady", messages.ModelReadyRequest(name=self.model)).ready:
            if time.monotonic() > end_s:
                raise TargetLost(
                    f"model {self.model!r} is not ready {APPLY_TIMEOUT_S:g} s after it was configured"
                )
            time.sleep(READY_POLL_S)

    # Counters

    def _find_metrics_page(self, extensions: Iterable[str]) -> None:
        self.notes = []
        ports = [e[len("metrics(") : -1] for e in extensions if e.startswith("metrics(") and e.endswith(")")]
        self.metrics_url = self._named_metrics_url
        if self.metrics_url is None and ports:
            host = f"[{self.host}]" if ":" in self.host else self.host
            self.metrics_url = f"http://{host}:{ports[0]}/metrics"
        try:
            self._page = self._open_page(self.metrics_url, advertised=bool(ports))
        except TargetError as error:
            if self._named_metrics_url is not None:
                raise
            self.notes.append(f"the advertised metrics page is left out: {error}")
        if self._page is None:
            self.notes.append(
                f"{self.address} tells completions, not arrivals, and no percentiles; "
                "give its metrics URL, so that a growing queue is seen"
            )

    def _open_page(self, url: str | None, advertised: bool) -> MetricsPage | None:
        if url is None:
            return None
        page = None
        try:
            page = MetricsPage(url, self.model, self.timeout_s, self._tls_ca)
            page.read()
            if advertised:
                page.try_filter()
        except (OSError, ValueError) as error:
            if page is not None:
                page.close()
            raise self._page_error(error) from None
        return page

    def _counters(self, everything: bool) -> Reading:
        if self._page is None:
            return self._read_statistics()
        try:
            reading = self._page.read() if everything else self._page.glance()
        except (OSError, ValueError) as error:
            raise self._page_error(error) from None
        if everything and not reading.telemetry:  # a stock Triton's page: batch sizes are in its statistics
            reading = replace(reading, telemetry=self._read_statistics().telemetry)
        return reading

    def _page_error(self, error: Exception) -> TargetError:
        kind = TargetLost if self._connected else TargetError
        if isinstance(error, ValueError):
            return kind(str(error))
        reason = getattr(error, "strerror", "") or str(error) or type(error).__name__
        return kind(f"the metrics page {self.metrics_url} does not answer ({reason[:1].lower()}{reason[1:]})")

    def _read_statistics(self) -> Reading:
        at_s = time.monotonic()
        answer = self._call("ModelStatistics", messages.ModelStatisticsRequest(name=self.model))
        return parse_statistics(answer.model_stats, at_s)

    def _with_resources(self, reading: Reading) -> Reading:
        """Adds what this machine knows of its processors, where the server is on it and does not tell."""
        if not self.is_local:
            return reading
        if reading.cpu_busy_s is None:
            times = cpu_times()
            reading = replace(reading, cpu_busy_s=times.busy_s, cpu_available_s=times.available_s)
        if reading.gpu_utilisation is None and self._gpus is not None:
            reading = replace(reading, gpu_utilisation=self._gpus.utilisation())
        return reading


def _tunable(config: ModelConfig) -> dict[str, int]:
    """The knobs to tune; without a dynamic batcher, max_batch_size only limits what clients send."""
    try:
        values = knob_values(config)
    except ValueError as error:
        raise TargetError(f"the configuration of model {config.name!r} cannot be read: {error}") from None
    if not config.HasField("dynamic_batching"):
        values.pop("max_batch_size", None)
    return values


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TargetError(f"the target must be HOST:PORT, e.g. localhost:8500, got {address!r}")
    return host.strip("[]")
