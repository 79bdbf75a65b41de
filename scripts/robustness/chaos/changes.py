"""Live changes of all knobs and modes; after each, the server must tell what it was given."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.chaos.checked_model import NAME
from scripts.robustness.chaos.load import ChaosTally
from scripts.robustness.chaos.server import ChaosServer

PATIENCE_S = 200.0  # a lane's model may have to be built anew, more than once
MODES = ("none", "hedging", "parity")
MODE_SHARE = 0.15  # of the changes, which change the mode, too
AT_REST = {"instances": 2, "intra": 1, "inter": 1, "batch": 4, "delay_us": 0, "mode": "none"}


class ChaosChanges:
    """Draws configurations and puts them in force."""

    def __init__(self, server: ChaosServer, stub: Any, tally: ChaosTally, draw: random.Random) -> None:
        self._server, self._stub, self._tally, self._draw = server, stub, tally, draw
        self.made: Counter[str] = Counter()  # by mode
        self.refused = 0
        self.slowest_s = 0.0
        self._mode = "none"

    async def change(self) -> bool:
        """Makes one change; False if it did not come about, since the server was away or refused."""
        if self._draw.random() < MODE_SHARE:
            self._mode = self._draw.choice(MODES)
        draw = self._draw
        return await self.put(
            {
                "instances": draw.randint(2 if self._mode == "parity" else 1, 4),
                "intra": draw.randint(1, 2),
                "inter": draw.randint(1, 2),
                "batch": draw.choice((1, 2, 4, 8)),
                "delay_us": draw.choice((0, 1000, 10_000)),
                "mode": self._mode,
                "r": draw.randint(1, 2),
                "late_percentile": draw.choice((0, 50, 95)),
            }
        )

    async def put(self, wanted: dict[str, Any]) -> bool:
        """Puts a configuration in force and compares what the server tells."""
        began_s = time.monotonic()
        request = pb.RepositoryModelLoadRequest(model_name=NAME)
        request.parameters["config"].string_param = json.dumps(_as_config(wanted))
        try:
            await self._stub.RepositoryModelLoad(request, timeout=PATIENCE_S)
            took_s = time.monotonic() - began_s
            config = (await self._stub.ModelConfig(pb.ModelConfigRequest(name=NAME), timeout=60)).config
        except grpc.aio.AioRpcError as error:
            self._not_made(error, began_s)
            return False
        if self._server.was_away(began_s, time.monotonic()):
            return False
        told = _as_wanted(config)
        if any(wanted[name] != value for name, value in told.items()):
            self._tally.fault("told", f"the server was given {wanted} and tells {told}")
        self.slowest_s = max(self.slowest_s, took_s)
        self.made[wanted["mode"]] += 1
        return True

    def _not_made(self, error: grpc.aio.AioRpcError, began_s: float) -> None:
        """A worker that is killed while it starts makes a change fail; then the old one stays."""
        if self._server.was_away(began_s, time.monotonic()):
            return
        self.refused += 1
        if error.code() != grpc.StatusCode.INTERNAL:
            self._tally.fault("change", f"{error.code().name}: {error.details()}")


def _as_config(wanted: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "INTRA_OP_THREAD_COUNT": wanted["intra"],
        "INTER_OP_THREAD_COUNT": wanted["inter"],
        "RESILIENCE_MODE": wanted["mode"],
        "RESILIENCE_R": wanted.get("r", 1),
        "RESILIENCE_LATE_PERCENTILE": wanted.get("late_percentile", 95),
        "RESILIENCE_REDUNDANT_INSTANCES": 1,
    }
    return {
        "max_batch_size": wanted["batch"],
        "instance_group": [{"count": wanted["instances"]}],
        "dynamic_batching": {"max_queue_delay_microseconds": wanted["delay_us"]},
        "parameters": {name: {"string_value": str(value)} for name, value in parameters.items()},
    }


def _as_wanted(config: Any) -> dict[str, Any]:
    return {
        "instances": config.instance_group[0].count,
        "intra": int(config.parameters["INTRA_OP_THREAD_COUNT"].string_value),
        "inter": int(config.parameters["INTER_OP_THREAD_COUNT"].string_value),
        "batch": config.max_batch_size,
        "delay_us": config.dynamic_batching.max_queue_delay_microseconds,
        "mode": config.parameters["RESILIENCE_MODE"].string_value,
    }
