"""`rrl-serve`: a local inference server whose parallelism and batching change live."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tyro.conf import UseAppendAction

from serving_adapter import model_configuration, resources
from serving_adapter.address import bracketed
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE, OFF
from serving_adapter.options import fail, in_a_sentence, parse
from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.metrics import serve_metrics
from serving_adapter.server.protocol import listening
from serving_adapter.server.protocol.arrivals_service import arrivals_handler
from serving_adapter.server.protocol.methods import protocol_handler
from serving_adapter.server.protocol.servicer import InferenceService
from serving_adapter.server.recording import Recording
from serving_adapter.server.redundancy.redundant_models import RedundantModels, parity_model
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.server.surroundings import THIS_MACHINE
from serving_adapter.server.workers.fault_file import Faults, read_faults
from serving_adapter.server.workers.fault_injection import inject
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.standard_streams import keep_standard_streams
from serving_adapter.stop_signal import (
    ENDED_BY_SIGNAL,
    done_before,
    end_quietly_on_interrupt,
    stop_on_signal,
)
from serving_adapter.tensors import UNREADABLE_ARRAYS

log = logging.getLogger(__name__)

FAILED = 1  # the exit status
SLOW_START_S = 5.0
MAX_RECORDED_BYTES = 2_000_000_000  # the front process holds the sample
FILE_SUFFIXES = (".pt", ".pt2", ".ts", ".safetensors")  # a model reference with one of these is a file


@dataclass(frozen=True)
class ServeOptions:
    """Serves PyTorch models over gRPC (Open Inference Protocol with Triton's extensions)."""

    model: UseAppendAction[tuple[str, ...]] = ()
    """A model to serve (default: minilm): a name of the catalogue, package.module:factory, or an exported
    .pt or .pt2 file; again for more models."""
    model_option: UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE for the models' factories, MODEL.KEY=VALUE for one of several (also parity.KEY=VALUE and
    backup.KEY=VALUE); again for more options."""
    host: str = "127.0.0.1"
    """Address to listen on; the default keeps the server on this machine."""
    port: int = 8500
    """gRPC port; 0 takes any free one."""
    metrics_port: int = 8502
    """HTTP port of /metrics; 0 takes any free one."""
    device: str = "cpu"
    """Where models run: cpu, cuda or cuda:N."""
    private_weights: bool = False
    """Keeps the weights in the server's own processes, not in the model store
    (docs/explanation/model-store.md)."""
    instances: int = Knobs.instances
    """Batches that may run at once, each in a worker process of its own."""
    intra_op_threads: int = 0
    """Threads within an operation; 0 is torch's own default, the number of cores."""
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
    """1: redundant workers of parity and backup models run the deployed model's batches first when all of its
    own workers are busy; 0: never."""
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
    """.npz file for a sample of the requests' inputs, written at the end, to train parity models with."""
    record_items: int = 10_000
    """Items in that sample at most."""
    max_queue_size: int = Protection.max_queue_size
    """Requests that may wait per model; further ones get RESOURCE_EXHAUSTED at once."""
    max_queue_bytes: int = 0
    """Bytes of the inputs that wait or are being run, shared equally by the models; further requests get
    RESOURCE_EXHAUSTED at once. As many more are for large answers that clients have yet to read. 0 is a
    quarter of this machine's, or the container's, memory."""
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
        for flag, low, high in (
            ("max_queue_size", 1, 1_000_000),
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


async def serve(options: ServeOptions) -> None:
    """Runs the server until SIGTERM, SIGINT or SIGHUP, then drains it.

    A stop while it starts ends it with the status of the signal.
    """
    stop = stop_on_signal()
    if options.private_weights:
        os.environ[FOLDER_VARIABLE] = OFF
    key = listening.control_key(options.control_key_file)
    listening.check_locked(options.host, key, has_tls=options.tls_cert is not None)
    models = _models(options)
    faults = _faults(options)
    server = listening.grpc_server(options.max_message_bytes, len(models) * options.max_queue_size)
    port = listening.bind(server, options.host, options.port, options.tls_cert, options.tls_key)
    try:
        metrics_port = serve_metrics(models, options.host.strip("[]"), options.metrics_port)
    except OSError as error:
        fail(
            f"cannot serve metrics on {bracketed(options.host)}:{options.metrics_port} ({error.strerror}); "
            "choose another --metrics-port, or 0 for any free one"
        )
    service = InferenceService(
        models, metrics_port=metrics_port, max_unread_bytes=_queue_bytes(options), control_key=key
    )
    handlers = (protocol_handler(service, options.max_message_bytes), arrivals_handler(models))
    server.add_generic_rpc_handlers(handlers)
    gc.collect()
    gc.freeze()  # The modules stay: to go through them at each collection would hold up the loop for 20 ms.
    await server.start()  # It tells that it lives, and that it is not ready, before any model is built.
    try:
        if not await done_before(stop, _start(models)):
            await server.stop(None)
            raise SystemExit(ENDED_BY_SIGNAL + stop.signal_number)
        _start_recording(options, models)
        names, host = ", ".join(models), bracketed(options.host)
        print(
            f"serving {names} on {host}:{port}, metrics on http://{host}:{metrics_port}/metrics", flush=True
        )
        injecting = asyncio.create_task(_inject(faults, models))
        injecting.add_done_callback(_note_end_of_faults)
        await stop.wait()
        injecting.cancel()
        print("draining: finishing what is in flight, taking nothing new", flush=True)
        await server.stop(options.drain_s)
    except ModelFailed as error:
        await server.stop(None)
        fail(str(error))
    finally:
        await asyncio.gather(*(model.close(grace_s=1.0) for model in models.values()))
    _end_recording(models)


async def _start(models: dict[str, ServedModel]) -> None:
    """Starts the models one after the other; ModelFailed, which names it, if one cannot be served."""
    for model in models.values():
        try:
            await _started(model)
        except ModelFailed as error:
            raise ModelFailed(f"model {model.name!r} cannot be served: {error}") from None


async def _started(model: ServedModel) -> None:
    """Starts a model, and says what the server is waiting for where that takes long."""
    loop = asyncio.get_running_loop()
    note = loop.call_later(SLOW_START_S, log.info, "model %s is still being built", model.name)
    try:
        await model.start()
    finally:
        note.cancel()


def _models(options: ServeOptions) -> dict[str, ServedModel]:
    given = {name: getattr(options, name) for name in model_configuration.KNOBS}
    given["intra_op_threads"] = given["intra_op_threads"] or resources.cores()
    try:
        model_configuration.check(given)
    except ValueError as error:
        fail(str(error))
    protection = Protection(
        max_queue_size=options.max_queue_size,
        max_held_bytes=_queue_bytes(options) / max(1, len(options.model)),
        max_answer_bytes=options.max_message_bytes,
        worker_timeout_s=options.worker_timeout_s,
    )
    resilience = ResilienceSettings(
        mode=options.resilience,
        k=options.k,
        r=options.r,
        redundant_instances=options.redundant_instances,
        late_percentile=options.late_percentile,
        late_after_us=options.late_after_us,
        group_timeout_us=options.group_timeout_us,
        overflow=options.overflow,
    )
    redundant_models = _redundant_models(options)
    models = {}
    for reference in options.model or ("minilm",):
        name = _name(reference)
        if name in models:
            fail(f"model {name!r} is given twice")
        models[name] = ServedModel(
            name=name,
            model=_reference(options, reference),
            device=options.device,
            knobs=Knobs(**given),
            protection=protection,
            resilience=resilience,
            redundant_models=redundant_models,
            surroundings=dataclasses.replace(THIS_MACHINE, start_timeout_s=options.start_timeout_s),
        )
    return models


def _queue_bytes(options: ServeOptions) -> int:
    return options.max_queue_bytes or resources.memory_bytes() // 4


def _redundant_models(options: ServeOptions) -> RedundantModels:
    if len(options.model) > 1 and (options.parity_model or options.backup_model or options.default_answer):
        fail("--parity-model, --backup-model and --default-answer are for one model; serve the others apart")
    try:
        deployed = _reference(options, options.model[0] if options.model else "minilm")
        parities = [
            parity_model(_reference(options, name, "parity"), deployed) for name in options.parity_model
        ]
        default = None if options.default_answer is None else _arrays(options.default_answer)
        if default is None and options.resilience == "default-answer":
            default = {}
        backup = None if options.backup_model is None else _reference(options, options.backup_model, "backup")
        return RedundantModels(tuple(parities), options.parity_encoder, backup, default)
    except (OSError, ValueError) as error:
        fail(in_a_sentence(error))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except UNREADABLE_ARRAYS:
        raise ValueError(f"{path} is no .npz file of arrays; write one with numpy.savez") from None


def _start_recording(options: ServeOptions, models: dict[str, ServedModel]) -> None:
    if options.record is None:
        return
    (model, *others) = models.values()
    (spec, *more) = model.inputs.values()
    if others or more or -1 in spec.shape or spec.dtype.kind != "f":
        fail("--record is for one model with one floating-point input of one size, as parity models are")
    kept_bytes = options.record_items * spec.dtype.itemsize * math.prod(spec.shape)
    if kept_bytes > MAX_RECORDED_BYTES:
        fail(
            f"--record-items {options.record_items} of {spec.datatype} {list(spec.shape)} would take "
            f"{kept_bytes / 1e9:.1f} GB of memory; at most {MAX_RECORDED_BYTES / 1e9:g} GB are kept"
        )
    if options.record.suffix != ".npz" or not os.access(options.record.parent, os.W_OK):
        fail(f"--record must be a file NAME.npz in a folder that can be written to, got {options.record}")
    model.recording = Recording(options.record, options.record_items)


def _end_recording(models: dict[str, ServedModel]) -> None:
    for model in models.values():
        if model.recording is not None:
            try:
                kept = model.recording.write()
            except OSError as error:
                print(f"the recorded requests are lost: {in_a_sentence(error)}")
                raise SystemExit(FAILED) from None
            print(f"recorded {kept} of {model.recording.seen} items: {model.recording.path}")


def _faults(options: ServeOptions) -> Faults | None:
    if options.faults is None:
        return None
    try:
        return read_faults(options.faults)
    except (OSError, ValueError) as error:
        fail(in_a_sentence(error))


async def _inject(faults: Faults | None, models: dict[str, ServedModel]) -> None:
    if faults is not None:
        await inject(faults, lambda: [pool for model in models.values() for pool in model.pools], log)


def _note_end_of_faults(injecting: asyncio.Task[None]) -> None:
    if not injecting.cancelled() and injecting.exception() is not None:
        log.error("the injection of faults ended: %s", injecting.exception())


def _reference(options: ServeOptions, reference: str, role: str = "") -> ModelReference:
    """What a zygote builds a model from; `role` is "parity" or "backup", or empty for a deployed model.

    The file of a parity model has its options in it.
    """
    if role and Path(reference).suffix in FILE_SUFFIXES and not Path(reference).is_file():
        fail(f"there is no file {reference}, which --{role}-model names")
    general = () if role and reference.endswith(".safetensors") else ("",)
    given = _model_options(options.model_option, (*general, _name(reference), role or reference))
    return ModelReference(reference, tuple(sorted(given.items())))


def _name(reference: str) -> str:
    """What clients call a model: a file's stem, a factory's name, or the name in the catalogue."""
    if "/" in reference or Path(reference).suffix in FILE_SUFFIXES:
        return Path(reference).stem
    return reference.rpartition(":")[2]


def _model_options(texts: tuple[str, ...], owners: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            fail(f"cannot read --model-option {text!r}; expected KEY=VALUE")
        owner, _, key = key.rpartition(".")
        if owner in owners:
            options[key] = value
    return options


def main() -> None:
    end_quietly_on_interrupt()
    keep_standard_streams()
    log_to_standard_error()
    serving = serve(parse(ServeOptions, sys.argv[1:]))
    try:
        import uvloop
    except ImportError:  # it is faster, and not to be had everywhere
        asyncio.run(serving)
    else:
        uvloop.run(serving)


if __name__ == "__main__":
    main()
