"""Deaths and stalls of processes, live changes and leases, at the moments that the scenario has drawn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.simulated_front.connection import MODEL, Aborted, SimulatedConnection
from scripts.robustness.simulated_front.leases import AskedLease
from scripts.robustness.simulated_front.processes import SimulatedMachine, SimulatedZygote
from scripts.robustness.simulated_front.scenario import SimulatedChange, SimulatedLease, Trouble
from scripts.robustness.simulated_front.virtual_time import call_later
from scripts.robustness.simulated_front.watch import FrontWatch
from scripts.robustness.simulated_front.worker import SimulatedWorker
from serving_adapter.lease import DURATION_PARAMETER, OWNER_PARAMETER
from serving_adapter.server.configuration import Knobs
from serving_adapter.server.redundancy.settings import ResilienceSettings, as_parameters


def strike(machine: SimulatedMachine, trouble: Trouble) -> None:
    """Kills or stops one of the processes that there are at this moment, if there are any."""
    there: list[SimulatedWorker] | list[SimulatedZygote]
    there = machine.workers if trouble.victim == "worker" else [z for z in machine.zygotes if z.lives]
    if not there:
        return
    process = there[int(trouble.lot * len(there))]
    machine.fates.watch.note(f"{trouble.deed} {trouble.victim}", process.pid)
    if trouble.deed == "stop":
        process.stop()
        call_later(trouble.lasts_s, process.resume)
    elif isinstance(process, SimulatedZygote):
        process.kill()
    else:
        process.end()


async def change(connection: SimulatedConnection, watch: FrontWatch, wanted: SimulatedChange) -> None:
    """Has the server load a configuration; what it told is in force from the answer on."""
    as_json = configuration_json(wanted.knobs, wanted.resilience, watch.has_parallel_branches)
    request = pb.RepositoryModelLoadRequest(model_name=MODEL)
    request.parameters["config"].string_param = as_json
    key = watch.change_began(wanted.knobs, wanted.resilience)
    asked = None if wanted.lease is None else _asked(watch, request, wanted.lease)
    calling = asyncio.ensure_future(connection.call("RepositoryModelLoad", request))
    if wanted.gives_up_after_s is not None:
        call_later(wanted.gives_up_after_s, calling.cancel)
    try:
        await calling
        watch.change_told(key)
        code = grpc.StatusCode.OK
    except Aborted as aborted:
        watch.change_refused(key, str(aborted))
        code = aborted.code
    except asyncio.CancelledError:
        watch.change_given_up(key)
        code = grpc.StatusCode.CANCELLED
    if asked is not None:
        watch.leases.answered(asked, code)


async def lease(connection: SimulatedConnection, watch: FrontWatch, wanted: SimulatedLease) -> None:
    """Asks for the lease alone, or gives it back."""
    request = pb.RepositoryModelLoadRequest(model_name=MODEL)
    asked = _asked(watch, request, wanted)
    try:
        # A task, as for changes, so that calls reach the server in the order in which they are noted.
        await asyncio.ensure_future(connection.call("RepositoryModelLoad", request))
        watch.leases.answered(asked, grpc.StatusCode.OK)
    except Aborted as aborted:
        watch.leases.answered(asked, aborted.code)


def _asked(watch: FrontWatch, request: pb.RepositoryModelLoadRequest, wanted: SimulatedLease) -> AskedLease:
    request.parameters[OWNER_PARAMETER].string_param = wanted.owner
    request.parameters[DURATION_PARAMETER].int64_param = wanted.duration_ms
    return watch.leases.asked(wanted.owner, wanted.duration_ms)


def configuration_json(knobs: Knobs, resilience: ResilienceSettings, branches: bool) -> str:
    parameters = {name: {"string_value": text} for name, text in as_parameters(resilience).items()}
    parameters["INTRA_OP_THREAD_COUNT"] = {"string_value": str(knobs.intra_op_threads)}
    if branches:
        parameters["INTER_OP_THREAD_COUNT"] = {"string_value": str(knobs.inter_op_threads)}
    config: dict[str, Any] = {
        "max_batch_size": knobs.max_batch_size,
        "instance_group": [{"count": knobs.instances}],
        "dynamic_batching": {"max_queue_delay_microseconds": knobs.max_queue_delay_us},
        "parameters": parameters,
    }
    return json.dumps(config)
