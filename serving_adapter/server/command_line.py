"""`rrl-serve`: a local inference server whose parallelism and batching change live."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from serving_adapter.address import bracketed
from serving_adapter.flags.parsing import fail, in_a_sentence, parse
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE, OFF
from serving_adapter.server.deployment import models_of
from serving_adapter.server.fronts.first_front import FirstFront
from serving_adapter.server.fronts.fronts import Fronts, NoOthers
from serving_adapter.server.fronts.orders import FrontOrder
from serving_adapter.server.fronts.other_front import OtherFront
from serving_adapter.server.metrics.collectors import serve_metrics
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol import listening
from serving_adapter.server.protocol.arrivals_service import arrivals_handler
from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.health_service import SERVICE as HEALTH
from serving_adapter.server.protocol.health_service import health_handler
from serving_adapter.server.protocol.methods import SERVICE as PROTOCOL
from serving_adapter.server.protocol.methods import protocol_handler
from serving_adapter.server.protocol.reflection import reflection_handlers
from serving_adapter.server.protocol.servicer import InferenceService
from serving_adapter.server.protocol.stream_room import StreamRoom
from serving_adapter.server.ray_engine.front_launching import FrontsOnNodes
from serving_adapter.server.recording import ItemSample, Recording
from serving_adapter.server.request_recording import RequestRecording
from serving_adapter.server.rest import listening as rest_listening
from serving_adapter.server.rest.application import application
from serving_adapter.server.rest.bodies import Bodies
from serving_adapter.server.rest.listening import RestServer
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.server.workers.fault_file import Faults, read_faults
from serving_adapter.server.workers.fault_injection import inject
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.standard_streams import keep_standard_streams
from serving_adapter.stop_signal import (
    ENDED_BY_SIGNAL,
    done_before,
    end_quietly_on_interrupt,
    stop_on_signal,
)
from serving_adapter.whole_files import check_place

log = logging.getLogger(__name__)

FAILED = 1  # the exit status
SLOW_START_S = 5.0
MAX_RECORDED_BYTES = 2_000_000_000  # the front process holds the sample
RECORDINGS: dict[str, Callable[[Path, int], Recording]] = {".npz": ItemSample, ".jsonl": RequestRecording}
"""By the ending of their file."""


async def serve(
    options: ServeOptions, order: FrontOrder | None = None, host_for_clients: str | None = None
) -> None:
    """Runs the server until SIGTERM, SIGINT or SIGHUP, then drains it.

    A stop while it starts ends it with the status of the signal. One of the other fronts has an `order`.
    `host_for_clients` is told in place of where it listens, for gRPC and the metrics page.
    """
    stop = stop_on_signal()
    if options.private_weights:
        os.environ[FOLDER_VARIABLE] = OFF
    key, models, faults, recording = prepared(options, 0 if order is None else order.number)
    fronts = _fronts(options, order, models, key)
    max_calls = listening.most_calls(len(models) * options.max_queue_size)
    server = listening.grpc_server(options.max_message_bytes, max_calls, options)
    port = listening.bind(server, options.host, options.port, options.tls_cert, options.tls_key)
    try:
        listening.check_free(options.host, options.metrics_port)
        metrics_port = serve_metrics(
            models, options.host.strip("[]"), options.metrics_port, fronts.collectors
        )
    except OSError as error:
        fail(
            f"cannot serve metrics on {bracketed(options.host)}:{options.metrics_port} ({error.strerror}); "
            "choose another --metrics-port, or 0 for any free one"
        )
    listener = None if options.rest_port is None else rest_listening.bind(options.host, options.rest_port)
    service = InferenceService(
        models,
        metrics_port=metrics_port,
        http_port=None if listener is None else listener.getsockname()[1],
        max_unread_bytes=options.byte_budget,
        control_key=key,
        load=fronts.load,
    )
    rest = None if listener is None else _rest(options, service, listener)
    awaited = AwaitedRequests(max_calls)
    # Half of the calls may stay, as streams do. Their requests find room in the queue without the others'.
    room = StreamRoom(max_calls // 2, options.max_queue_size)
    server.add_generic_rpc_handlers(
        (
            protocol_handler(service, options.max_message_bytes, awaited, room),
            arrivals_handler(models, awaited),
            health_handler(models, awaited, room),
            *reflection_handlers((PROTOCOL.full_name, HEALTH), room),
        )
    )
    gc.collect()
    gc.freeze()  # The modules stay: to go through them at each collection would hold up the loop for 20 ms.
    await server.start()  # It tells that it lives, and that it is not ready, before any model is built.
    if rest is not None:
        rest.start()
    try:
        if not await done_before(stop, _start(models, fronts)):
            await _stop(server, rest, None)
            raise SystemExit(ENDED_BY_SIGNAL + stop.signal_number)
        _start_recording(recording, options, models)
        names, host = ", ".join(models), bracketed(host_for_clients or options.host)
        if rest is not None:
            log.info("the protocol over HTTP is at %s", rest.url)
        metrics_url = f"http://{host}:{metrics_port}/metrics"
        print(f"serving {names} on {host}:{port}, metrics on {metrics_url}", flush=True)
        await fronts.serving(f"{host}:{port}", metrics_url)
        injecting = asyncio.create_task(_inject(faults, models))
        injecting.add_done_callback(_note_end_of_faults)
        await stop.wait()
        injecting.cancel()
        print("draining: finishing what is in flight, taking nothing new", flush=True)
        for model in models.values():
            model.is_draining = True
        room.drain()
        await asyncio.gather(_stop(server, rest, options.drain_s), fronts.drain(options.drain_s))
    except ModelFailed as error:
        await _stop(server, rest, None)
        fail(str(error))
    finally:
        await asyncio.gather(*(model.close(grace_s=1.0) for model in models.values()))
        await fronts.close()
    _end_recording(recording)


class Prepared(NamedTuple):
    """What is there before a port is taken or a process started."""

    control_key: str | None
    models: dict[str, ServedModel]
    faults: Faults | None
    recording: Recording | None


def prepared(options: ServeOptions, front: int = 0) -> Prepared:
    """Reads what the options name; ends the command where they are wrong, as far as no model is needed.

    `front` is the number of this process among the fronts, from 0.
    """
    key = listening.control_key(options.control_key_file)
    listening.check_locked(options.host, key, has_tls=options.tls_cert is not None)
    models = models_of(options, front)
    return Prepared(key, models, _faults(options), _recording(options, models))


def _fronts(
    options: ServeOptions, order: FrontOrder | None, models: dict[str, ServedModel], key: str | None
) -> Fronts:
    """What this process has to do with other fronts."""
    if order is not None:
        return OtherFront(order, models)
    if options.fronts == 1:
        return NoOthers(models)
    model, *_ = models.values()  # of the same configuration as the others
    nodes = FrontsOnNodes(options.address, options.fronts, model.knobs.parallelism)
    return FirstFront(options, models, key, nodes)


def _rest(options: ServeOptions, service: InferenceService, listener: socket.socket) -> RestServer:
    """The other door, which does not serve yet."""
    bodies = Bodies(options.max_message_bytes, options.byte_budget)
    return RestServer(application(service, bodies), listener, options.tls_cert, options.tls_key)


async def _stop(server: grpc.aio.Server, rest: RestServer | None, drain_s: float | None) -> None:
    """Takes nothing new at either door, and waits for what is in flight."""
    closing = [server.stop(drain_s)]
    if rest is not None:
        closing.append(rest.stop(drain_s or 0.0))
    await asyncio.gather(*closing)


async def _start(models: dict[str, ServedModel], fronts: Fronts) -> None:
    """Starts the models one after the other; ModelFailed, which names it, if one cannot be served."""
    await fronts.open()
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


def _recording(options: ServeOptions, models: dict[str, ServedModel]) -> Recording | None:
    """What is to be kept of the requests; its file is checked before a model is built."""
    if options.record is None:
        return None
    if len(models) > 1:
        fail("--record is for a server of one model: serve the others apart")
    kind = RECORDINGS.get(options.record.suffix)
    if kind is None:
        fail(f"--record must be a file NAME.npz or NAME.jsonl, got {options.record}")
    try:
        check_place(options.record)
    except OSError as error:
        fail(f"--record: {in_a_sentence(error)}")
    return kind(options.record, options.record_items)


def _start_recording(
    recording: Recording | None, options: ServeOptions, models: dict[str, ServedModel]
) -> None:
    if recording is None:
        return
    (model,) = models.values()
    if isinstance(recording, ItemSample):
        _check_sample(options, model)
    model.recording = recording


def _check_sample(options: ServeOptions, model: ServedModel) -> None:
    (spec, *more) = model.inputs.values()
    if more or -1 in spec.shape or spec.dtype.kind != "f":
        fail(
            "--record NAME.npz is for a model with one floating-point input of one size, as parity models "
            "are; NAME.jsonl takes requests of any model"
        )
    kept_bytes = options.record_items * spec.codec.size_bytes(spec.shape)
    if kept_bytes > MAX_RECORDED_BYTES:
        fail(
            f"--record-items {options.record_items} of {spec.datatype} {list(spec.shape)} would take "
            f"{kept_bytes / 1e9:.1f} GB of memory; at most {MAX_RECORDED_BYTES / 1e9:g} GB are kept"
        )


def _end_recording(recording: Recording | None) -> None:
    if recording is None:
        return
    try:
        kept = recording.write()
    except OSError as error:
        print(f"the recorded requests are lost: {in_a_sentence(error)}")
        raise SystemExit(FAILED) from None
    print(f"recorded {kept} of {recording.seen} {recording.unit}: {recording.path}")


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


def main() -> None:
    end_quietly_on_interrupt()
    keep_standard_streams()
    log_to_standard_error()
    run(serve(parse(ServeOptions, sys.argv[1:])))


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Serves to the end, on the fastest event loop that there is."""
    try:
        import uvloop
    except ImportError:  # it is faster, and not to be had everywhere
        asyncio.run(serving)
    else:
        uvloop.run(serving)


if __name__ == "__main__":
    main()
