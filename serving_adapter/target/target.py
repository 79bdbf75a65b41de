"""A target: a running inference server that is observed and reconfigured over gRPC.

It speaks the Open Inference Protocol with Triton's statistics, model-configuration and model-repository
extensions. Our own server does, and so does a stock Triton. A server without them, such as MLServer, can be
observed by its metrics page, and cannot be changed.

| a change of | by our own server | by a stock Triton |
|---|---|---|
| `instances` alone | in place | in place: processes are started beside those that serve, or some are ended |
| anything else | in place | all of it in one new load: new processes take over, the old ones drain and end |

On a machine of few cores, instances beyond those that served before start in turns (`starts_at_once`).

A change that fails leaves the configuration that was in force before: it is loaded again, and verified.

| part | does |
|---|---|
| `InferenceServer` | tells what the server is, its models and their configurations |
| `TargetCounters` | reads the counters |
| `checks` | says what may be tuned, and what is refused |
| `FoundConfiguration` | remembers the configuration that the target was found with |
| `Reconfiguration` | puts a configuration in force |
"""

from __future__ import annotations

from collections import Counter

from serving_adapter import resources
from serving_adapter.address import ServerAddress
from serving_adapter.model_configuration import Configuration, Limits, as_json, as_pbtxt, limits
from serving_adapter.target import checks
from serving_adapter.target.connection import Connection
from serving_adapter.target.counters import PageLocation, TargetCounters, find_counters
from serving_adapter.target.error import TargetError, TargetLost
from serving_adapter.target.found_configuration import FoundConfiguration
from serving_adapter.target.inference_server import InferenceServer
from serving_adapter.target.lease import TunerLease
from serving_adapter.target.reading import Reading
from serving_adapter.target.reconfiguration import Applied, BeforeChange, Reconfiguration


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
        where = _parsed(address)
        self.address, self.host = str(where), where.host
        # The processors of a server on this machine are this machine's own.
        self.is_local = where.is_local
        self.model = model or ""
        self.metrics_url = metrics_url
        self.timeout_s = timeout_s
        self.server = ""  # its name and version
        self.cores: int | None = None  # that its server may use, if that tells
        self.tells_gpus = False  # how busy its GPUs are
        self.started_s: float | None = None  # when the server started, by its clock, if it tells
        self.before_change: BeforeChange = lambda before, after: None  # told of a change before it is made
        self.notes: list[str] = []  # what the target cannot tell, one sentence each, to be said once
        self.calls: Counter[str] = Counter()  # gRPC calls by method, and fetches of the metrics page
        # Instances of a stock Triton that may start together: half of the cores are left to those that serve.
        self.starts_at_once = max(1, resources.cores() // 2) if self.is_local else None
        self._named_model, self._named_metrics_url = model, metrics_url
        self._control_key, self._tls_ca = control_key, tls_ca
        self._inference_server = InferenceServer(self.address)
        self._found = FoundConfiguration()
        self._reconfiguration = Reconfiguration(self._inference_server, self._found)
        self._counters: TargetCounters | None = None
        self._page_was_read = False  # when it was connected last

    # --- connecting --------------------------------------------------------------------------------

    def connect(self, control: bool = True, counters: bool = True) -> None:
        """Finds the server, its model and its metrics page; with `control`, makes sure it may be changed.

        Nothing is changed by it: what cannot be tuned is refused before. A page that was read must be there
        again after a loss of the target. Without `counters` nothing can be read, and that page may be away.
        """
        self.close()
        connection = Connection(
            self.address, self.is_local, self.timeout_s, self.calls, self._control_key, self._tls_ca
        )
        self._inference_server.connect(connection)
        try:
            self._find(control, counters)
            if counters:
                self.read()
        except TargetError:
            self.close()
            raise
        connection.known = True
        if self._counters is not None:
            self._counters.known = True
            self._page_was_read = self._counters.page is not None

    def _find(self, control: bool, counters: bool) -> None:
        server = self._inference_server
        server.introduce()
        self.server = server.name
        is_missed = counters and self._page_was_read
        page = PageLocation.of(self._named_metrics_url, self.host, server.extensions, is_missed)
        self.metrics_url = page.url
        server.check_extensions(control, has_page=page.url is not None)
        self.model = self._named_model = server.choose_model(self._named_model)  # kept when connected anew
        config = server.config_of(self.model)
        self._found.remember(config)
        self.notes = checks.notes(config, self.server)
        if counters:
            self._counters, notes = find_counters(
                server, self.model, page, self.is_local, self.timeout_s, self._tls_ca, self.calls
            )
            self.notes += notes
        if control:
            checks.check_tunable(config, self.address, lambda: server.configs_besides(self.model))
            self.check_control()

    def close(self) -> None:
        self._inference_server.close()
        if self._counters is not None:
            self._counters.close()
        self._counters = None

    # --- what it is --------------------------------------------------------------------------------

    @property
    def is_rrl_serve(self) -> bool:
        """True for this project's own server."""
        return self._inference_server.is_rrl_serve

    @property
    def in_place_knobs(self) -> frozenset[str]:
        """The knobs that change without a reload of the model."""
        return self._inference_server.in_place_knobs

    def knobs(self) -> dict[str, Limits]:
        """The knobs that this model has, and the limits of each."""
        config = self._inference_server.config_of(self.model)
        told = limits(config)
        return {name: told[name] for name in checks.tunable(config)}

    def configuration(self) -> dict[str, int]:
        """The configuration in force; empty where the server does not tell."""
        return checks.tunable(self._inference_server.config_of(self.model))

    def model_config(self, configuration: Configuration) -> str:
        """The model's ModelConfig as JSON with these knobs set: what `apply` sends."""
        return as_json(self._found.edited(self._inference_server.config_of(self.model), configuration))

    def config_pbtxt(self, configuration: Configuration | None = None) -> str:
        """The text of the model's `config.pbtxt` with these knobs set; without any, as it is in force."""
        config = self._inference_server.config_of(self.model)
        return as_pbtxt(config if configuration is None else self._found.edited(config, configuration))

    # --- what it is checked for --------------------------------------------------------------------

    def why_not_tunable(self) -> str:
        """Says in one sentence why the model cannot be tuned; empty if its configuration allows it."""
        server = self._inference_server
        try:
            server.check_extensions(control=True, has_page=self.metrics_url is not None)
            config = server.config_of(self.model)
            checks.check_tunable(config, self.address, lambda: server.configs_besides(self.model))
        except TargetLost:
            raise
        except TargetError as error:
            return str(error)
        return ""

    def check_control(self) -> None:
        """TargetError if the server does not let its models be loaded. Nothing is changed by the question."""
        self._inference_server.check_control()

    def requests_hold_several_items(self) -> bool:
        """True if requests were seen that a smaller max_batch_size may refuse."""
        return self._reconfiguration.requests_hold_several_items(self.model)

    def refuses_more_than_found(self, configuration: Configuration) -> str:
        """Says in one sentence that more requests are refused than before; empty if none are."""
        return self._reconfiguration.refuses_more_than_found(configuration)

    # --- keeping others off ------------------------------------------------------------------------

    def take_lease(self, lease: TunerLease) -> bool:
        """Keeps other tuners off the model for so long; false where the server has no leases.

        Every change prolongs it; between changes call `prolong_lease`, well before it ends. A lease of 0 s
        gives it back. LeaseTaken if another tuner has it, then or at a later change, and LeaseLost if another
        has had it since. People's changes by hand are let through. A stock Triton has no leases.
        """
        return self._inference_server.take_lease(self.model, lease)

    def prolong_lease(self) -> None:
        """Prolongs the lease that was taken; LeaseTaken or LeaseLost as in `take_lease`."""
        self._inference_server.prolong_lease(self.model)

    def forget_lease(self) -> None:
        """What other tuners did is known: a lease that is taken from now on begins anew."""
        self._inference_server.forget_lease()

    # --- changing it -------------------------------------------------------------------------------

    def apply(self, configuration: Configuration) -> Applied:
        """Puts these knobs in force, the others as they are; returns when the server is ready with them.

        What is in force already is not sent, except after a change that Ctrl-C broke off. If the change
        fails, the configuration before it is put back.

        RequestsRefused, with nothing changed, if the server would then refuse requests of several items.
        Whether there are any is asked before every change to a max_batch_size below the one found, since
        later requests may differ from those that a run began with.
        """
        return self._reconfiguration.apply(
            self.model, configuration, self._counters, self.starts_at_once, self.before_change
        )

    def was_found_as(self, config_pbtxt: str) -> None:
        """What the knobs bring with them is as in this text, which `config_pbtxt` once told."""
        self._found.set_to(config_pbtxt)

    # --- reading it --------------------------------------------------------------------------------

    @property
    def glance_is_cheap(self) -> bool:
        """True if the server can be asked for a few counters; a stock Triton writes out its whole page."""
        page = self._counters.page if self._counters else None
        return page is not None and page.is_filtered

    def read(self) -> Reading:
        """All counters of the model, now."""
        reading = self._open_counters.read()
        self.started_s, self.cores = reading.start_time_s, reading.cores
        self.tells_gpus = reading.gpu_utilisation is not None
        return reading

    def glance(self) -> Reading:
        """Arrivals, completions, failures and backlog only: the cheapest call, to poll with."""
        return self._open_counters.glance()

    @property
    def _open_counters(self) -> TargetCounters:
        if self._counters is None:
            raise TargetError(f"the target {self.address} is not connected; call connect() first")
        return self._counters


def _parsed(address: str) -> ServerAddress:
    try:
        return ServerAddress.parse(address)
    except ValueError as error:
        raise TargetError(f"the target {error}") from None
