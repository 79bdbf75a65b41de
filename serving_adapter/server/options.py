"""The options of `rrl-serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import UseAppendAction

from serving_adapter import resources
from serving_adapter.server.configuration import MAX_LEVELS, Knobs, Priorities, Protection
from serving_adapter.server.protocol.keep_alive import KeepAliveOptions
from serving_adapter.server.ray_engine.options import EngineOptions
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.surroundings import THIS_MACHINE

GRPC_PORT, REST_PORT = 8500, 8501  # where none is given


@dataclass(frozen=True)
class _AllButPings:
    """The options that `--help` has before those about pings: a base's fields come first."""

    model: UseAppendAction[tuple[str, ...]] = ()
    """A model to serve (default: minilm): a name of the catalogue, package.module:factory, or an exported
    .pt or .pt2 file; again for more models."""
    model_option: UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE for the models' factories, MODEL.KEY=VALUE for one of several (also parity.KEY=VALUE and
    backup.KEY=VALUE); again for more options."""
    host: str = "127.0.0.1"
    """Address to listen on; the default keeps the server on this machine."""
    port: int = GRPC_PORT
    """gRPC port; 0 takes any free one."""
    metrics_port: int = 8502
    """HTTP port of /metrics; 0 takes any free one."""
    http_port: int | None = None
    """Port of the same protocol over HTTP/REST; 0 takes any free one, -1 none (default: 8501 beside --port
    8500, else any free one, which ServerMetadata and the log tell)."""
    device: str = "cpu"
    """Where models run: cpu, cuda or cuda:N."""
    private_weights: bool = False
    """Keeps the weights in the server's own processes, not in the model store
    (docs/explanation/model-store.md)."""
    instances: int = Knobs.instances
    """Batches that may run at once, each in a worker process of its own."""
    intra_op_threads: int = 0
    """Threads within an operation; 0 is torch's own default, the number of cores, and 1 with --engine ray."""
    inter_op_threads: int = Knobs.inter_op_threads
    """Operations of one batch that may run at once (models with parallel branches only)."""
    max_batch_size: int = Knobs.max_batch_size
    """Items in a batch at most."""
    max_queue_delay_us: int = Knobs.max_queue_delay_us
    """Microseconds that the oldest request may wait for its batch to fill."""
    resilience: str = ResilienceSettings.mode
    """What is done about slow and failed workers: none, equal-resources, replication, hedging,
    approximate-backup, default-answer or parity (docs/explanation/parity-models.md)."""
    k: int = ResilienceSettings.k
    """Batches in a coding group; m/k redundant workers for m instances (default-answer has none)."""
    r: int = ResilienceSettings.r
    """Parity batches of a coding group, each with a parity model and m/k workers of its own."""
    redundant_instances: int = ResilienceSettings.redundant_instances
    """Redundant workers, where m/k is not wanted."""
    late_percentile: int = ResilienceSettings.late_percentile
    """A batch is late after this percentile of the recent service times: hedging then runs it again, parity
    reconstructs its answer if it can (0: every batch, at once)."""
    late_after_us: int = ResilienceSettings.late_after_us
    """Microseconds after which a batch is late, instead of the percentile; or until a request gets the
    default answer."""
    group_timeout_us: int = ResilienceSettings.group_timeout_us
    """Microseconds that a coding group may wait for its last batches until it is filled up with answered
    ones (0: for ever)."""
    overflow: Literal[0, 1] = ResilienceSettings.overflow
    """1: workers of parity and backup models run the deployed model's batches when all of its own are busy,
    while --max-batch-size is 1; its own run parity queries while no batch waits for them; 0: never."""
    parity_model: UseAppendAction[tuple[str, ...]] = ()
    """A parity model, of rrl-parity train; again for other k and rows."""
    parity_encoder: Literal["sum", "concat"] = RedundantModels.encoder
    """The encoder of parity models that do not say what they were trained for."""
    backup_model: str | None = None
    """The cheaper model of the mode approximate-backup."""
    default_answer: Path | None = None
    """NumPy .npz with one row of each output for the mode default-answer; needed to change to that mode live
    (default: zeros, where the server starts in it)."""
    faults: Path | None = None
    """YAML file of faults to inject into the workers, for tests and benchmarks (workers/fault_file.py)."""
    record: Path | None = None
    """File for what comes, written at the end. NAME.npz: a sample of the inputs, to train parity models with.
    NAME.jsonl: the first requests with their moments, for rrl-load --arrivals recorded."""
    record_items: int = 10_000
    """Items in that sample, or requests, at most."""
    max_queue_size: int = Protection.max_queue_size
    """Requests that may wait per model; further ones get RESOURCE_EXHAUSTED at once."""
    priority_levels: int = Priorities.levels
    """Levels by which requests are served, those of priority 1 first; 0: in the order in which they come."""
    default_priority_level: int = 0
    """The level of requests that name no priority; 0 is the last."""
    max_queue_bytes: int = 0
    """Bytes of the inputs that wait or are being run, shared equally by the models; further requests get
    RESOURCE_EXHAUSTED at once. Large answers that clients have yet to read take as many more, or twice as
    many where these are of many connections. 0 is a quarter of this machine's, or the container's, memory."""
    max_message_bytes: int = 16 << 20
    """Largest request or answer in bytes. Other requests wait while gRPC takes a large one in, some 1.5 ms a
    MiB."""
    worker_timeout_s: float = Protection.worker_timeout_s
    """A worker that holds a batch for longer is replaced and the batch run again."""
    start_timeout_s: float = THIS_MACHINE.start_timeout_s
    """Seconds that a model may take to be built, and a worker to warm up; one that takes longer is ended."""
    drain_s: float = 25.0
    """On SIGTERM, seconds that requests in flight may take to finish."""
    control_key_file: Path | None = None
    """File with the key that changing the configuration then needs (or set RRL_CONTROL_KEY)."""
    tls_cert: Path | None = None
    """PEM certificate chain; with --tls-key serves TLS."""
    tls_key: Path | None = None
    """PEM private key."""

    def __post_init__(self) -> None:
        for flag in ("port", "metrics_port"):
            if not 0 <= getattr(self, flag) <= 65535:
                raise ValueError(
                    f"--{flag.replace('_', '-')} must be from 0 to 65535, got {getattr(self, flag)}"
                )
        if self.http_port is not None and not -1 <= self.http_port <= 65535:
            raise ValueError(f"--http-port must be from 0 to 65535, or -1 for none, got {self.http_port}")
        for flag, low, high in (
            ("max_queue_size", 1, 1_000_000),
            ("priority_levels", 0, MAX_LEVELS),
            ("default_priority_level", 0, self.priority_levels),
            ("max_queue_bytes", 0, 1 << 50),
            ("record_items", 1, 10_000_000),
            ("max_message_bytes", 1024, 1 << 30),
            ("worker_timeout_s", 0.1, 86_400),
            ("start_timeout_s", 1, 86_400),
            ("drain_s", 0, 86_400),
        ):
            if not low <= getattr(self, flag) <= high:
                name = flag.replace("_", "-")
                raise ValueError(f"--{name} must be from {low:g} to {high:g}, got {getattr(self, flag):g}")

    @property
    def rest_port(self) -> int | None:
        """The port of the protocol over HTTP; None for none."""
        if self.http_port is None:
            return REST_PORT if self.port == GRPC_PORT else 0
        return None if self.http_port == -1 else self.http_port

    @property
    def byte_budget(self) -> int:
        """Bytes for inputs that wait or are being run, and as many for answers that are yet to be read."""
        return self.max_queue_bytes or resources.memory_bytes() // 4


@dataclass(frozen=True)
class ServeOptions(KeepAliveOptions, EngineOptions, _AllButPings):
    """Serves PyTorch models over gRPC and HTTP (Open Inference Protocol with Triton's extensions)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_keep_alive()
        self.check_engine()
        if self.fronts == 1:
            return
        if self.instances < self.fronts:
            raise ValueError(
                f"--instances {self.instances} is below --fronts {self.fronts}, and each front needs a "
                f"worker of its own; give --instances {self.fronts} or more"
            )
        if self.record is not None:
            raise ValueError("--record keeps what one front gets; leave it out, or --fronts")
