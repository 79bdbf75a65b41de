"""A model of a running inference server that is observed and reconfigured over gRPC.

The server speaks the Open Inference Protocol with Triton's statistics, model-configuration and
model-repository extensions. Our own server does, and so does a stock Triton. A server without them, such as
MLServer, can be observed by its metrics page, and cannot be changed.

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

from serving_adapter import resources
from serving_adapter.address import ServerAddress
from serving_adapter.knob_limits import Configuration, Limits
from serving_adapter.model_configuration import as_pbtxt, instances_that_fit, is_on_cluster, limits
from serving_adapter.target.configuration_files import ConfigurationFiles
from serving_adapter.target.error import TargetError, TargetLost
from serving_adapter.target.lease import TunerLease
from serving_adapter.target.open_inference import checks
from serving_adapter.target.open_inference.config_files import files_of
from serving_adapter.target.open_inference.connection import Connection
from serving_adapter.target.open_inference.counters import TargetCounters
from serving_adapter.target.open_inference.found_configuration import FoundConfiguration
from serving_adapter.target.open_inference.found_counters import PageLocation, find_counters
from serving_adapter.target.open_inference.inference_server import InferenceServer
from serving_adapter.target.open_inference.kept_configuration import kept_configuration
from serving_adapter.target.open_inference.reconfiguration import Reconfiguration
from serving_adapter.target.reading import Reading
from serving_adapter.target.target import Applied, Room, Target


class OpenInferenceTarget(Target):
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
        super().__init__(str(where), model or "")
        self.is_local, self.host = where.is_local, where.host
        self.metrics_url = metrics_url
        self.timeout_s = timeout_s
        # Instances of a stock Triton that may start together: half of the cores are left to those that serve.
        self.starts_at_once = max(1, resources.cores() // 2) if self.is_local else None
        self._named_model, self._named_metrics_url = model, metrics_url
        self._control_key, self._tls_ca = control_key, tls_ca
        self._inference_server = InferenceServer(self.address)
        self._found = FoundConfiguration()
        self._reconfiguration = Reconfiguration(self._inference_server, self._found)
        self._counters: TargetCounters | None = None
        self._ensembles: dict[str, int] | None = None  # None: nobody has asked yet
        self._cpus_by_node: tuple[int, ...] = ()  # of its cluster, when it was read last
        self._page_was_read = False  # when it was connected last

    # --- connecting --------------------------------------------------------------------------------

    def connect(self, control: bool = True, counters: bool = True) -> None:
        """A page that was read must be there again after a loss of the target."""
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
        page = PageLocation.of(
            self._named_metrics_url, _parsed(self.address), self.server, server.extensions, is_missed
        )
        self.metrics_url = page.url
        server.check_extensions(control, has_page=page.url is not None)
        self.model = self._named_model = server.choose_model(self._named_model)  # kept when connected anew
        config = server.config_of(self.model)
        self._found.remember(config)
        if control:
            self._ensembles = None  # there may be others now
        self.notes = checks.notes(config, self.server, self.ensembles if control else ())
        self.notes += checks.notes_on_address(_parsed(self.address))
        if counters:
            self._counters, notes = find_counters(
                server, self.model, page, self.is_local, self.timeout_s, self._tls_ca, self.calls
            )
            self.notes += notes
            if self._counters.page is None:
                self.metrics_url = None
        if control:
            checks.check_tunable(config, self.address)
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
        return self._inference_server.in_place_knobs

    @property
    def ensembles(self) -> dict[str, int]:
        """Of which the model is a step, with their max_batch_size: they stay ready through its changes."""
        if self._ensembles is None:
            self._ensembles = self._inference_server.ensembles_of(self.model)
        return self._ensembles

    def steps(self) -> list[str]:
        """The models that do an ensemble's work; none of another model. TargetError if one is not loaded."""
        return self._inference_server.steps_of(self.model)

    def knobs(self) -> dict[str, Limits]:
        config = self._inference_server.config_of(self.model)
        told = limits(config)
        has = checks.tunable(config)
        if "max_batch_size" in has and (least := max(self.ensembles.values(), default=0)):
            low, high = told["max_batch_size"]
            told = told | {"max_batch_size": Limits(max(low, least), max(high, least))}
        return {name: told[name] for name in has}

    def configuration(self) -> dict[str, int]:
        return checks.tunable(self._inference_server.config_of(self.model))

    def config_text(self, configuration: Configuration | None = None) -> str:
        """The text of the model's `config.pbtxt` with these knobs set; without any, as it is in force."""
        config = self._inference_server.config_of(self.model)
        return as_pbtxt(config if configuration is None else self._found.edited(config, configuration))

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        """Its `config.pbtxt`, and the ModelConfig as JSON: what `apply` sends."""
        return files_of(self._found.edited(self._inference_server.config_of(self.model), configuration))

    @staticmethod
    def kept(text: str) -> ConfigurationFiles:
        return kept_configuration(text)

    # --- what it is checked for --------------------------------------------------------------------

    def why_not_tunable(self) -> str:
        server = self._inference_server
        try:
            server.check_extensions(control=True, has_page=self.metrics_url is not None)
            config = server.config_of(self.model)
            checks.check_tunable(config, self.address)
        except TargetLost:
            raise
        except TargetError as error:
            return str(error)
        return ""

    def room(self) -> Room | None:
        if not self._cpus_by_node:
            return None
        config = self._inference_server.config_of(self.model)
        return Room(instances_that_fit(config, self._cpus_by_node), max(self._cpus_by_node))

    def check_control(self) -> None:
        self._inference_server.check_control()

    def requests_hold_several_items(self) -> bool:
        return self._reconfiguration.requests_hold_several_items(self.model)

    def refuses_more_than_found(self, configuration: Configuration) -> str:
        return self._reconfiguration.refuses_more_than_found(configuration)

    # --- keeping others off ------------------------------------------------------------------------

    def take_lease(self, lease: TunerLease) -> bool:
        """A stock Triton has no leases.

        Every change prolongs it; between changes call `prolong_lease`, well before it ends. A lease of 0 s
        gives it back. LeaseTaken if another tuner has it, then or at a later change, and LeaseLost if another
        has had it since. People's changes by hand are let through.
        """
        return self._inference_server.take_lease(self.model, lease)

    def prolong_lease(self) -> None:
        self._inference_server.prolong_lease(self.model)

    def forget_lease(self) -> None:
        self._inference_server.forget_lease()

    # --- changing it -------------------------------------------------------------------------------

    def apply(self, configuration: Configuration) -> Applied:
        """What is in force already is sent after a change that was broken off.

        RequestsRefused, with nothing changed, if the server would then refuse requests of several items.
        Whether there are any is asked before every change to a max_batch_size below the one found, since
        later requests may differ from those that a run began with.
        """
        return self._reconfiguration.apply(
            self.model,
            configuration,
            self._counters,
            self.starts_at_once,
            self.before_change,
            self.ensembles,
        )

    def restore(self, found: Configuration, text: str = "") -> Applied:
        """What is in force already is sent, too: the server may go on with a load of that run."""
        self._reconfiguration.may_be_changing()
        return super().restore(found, text)

    def was_loaded_anew(self) -> None:
        """The server did it, after a change of a step: the statistics began again, and the page did not."""
        if self._counters is not None:
            self._counters.loaded()

    def was_found_as(self, text: str) -> None:
        self._found.set_to(text)

    # --- reading it --------------------------------------------------------------------------------

    @property
    def glance_is_cheap(self) -> bool:
        """A stock Triton writes out its whole page; ours can be asked for a few counters."""
        page = self._counters.page if self._counters else None
        return page is not None and page.is_filtered

    def read(self) -> Reading:
        reading = self._open_counters.read()
        self.started_s, self.cores = reading.start_time_s, reading.cores or self._threads_of_ours()
        self._cpus_by_node = reading.cpus_by_node
        self.tells_gpus = reading.gpu_utilisation is not None
        return reading

    def glance(self) -> Reading:
        return self._open_counters.glance()

    def _threads_of_ours(self) -> int | None:
        """The threads in force of an `rrl-serve` elsewhere stand for its cores, which they are by default.

        On a cluster they are not.
        """
        if not self.is_rrl_serve or self.is_local:
            return None
        if is_on_cluster(self._inference_server.config_of(self.model)):
            return None
        return self.configuration().get("intra_op_threads")

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
