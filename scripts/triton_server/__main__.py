"""`scripts/triton`: installs a Triton if there is none, and serves our models in it until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.triton_server.installation import DEFAULT, install
from scripts.triton_server.repository import TENSORS, ModelSpec, write_repository
from scripts.triton_server.running import RunningTriton, running
from serving_adapter.flags.parsing import fail, parse
from serving_adapter.knob_limits import check

# What one instance just bears without batching, on 2 cores: a start that is worth tuning.
RATES_PER_S = {"minilm": 80, "efficientnet_lite0": 25}
FOR_EVER_S = 1e9  # a wait with a limit wakes now and then, and so misses no Ctrl-C that comes just before it


@dataclass(frozen=True)
class TritonOptions:
    """Serves models in a stock Triton on this machine, to try rrl-tune on; installs it at first."""

    models: tuple[str, ...] = ("minilm",)
    """Of minilm, efficientnet_lite0, noop, sleep, burn and add_sub."""
    port: int = 8001
    """gRPC port; 0 is a free one."""
    http_port: int = 8000
    """HTTP port; 0 is a free one."""
    metrics_port: int = 8002
    """Port of the metrics page; 0 is a free one."""
    instances: int = 1
    """Instances of each model at the start."""
    max_batch_size: int = 1
    """Largest batch at the start; 1 is Triton's own default."""
    folder: Path = DEFAULT
    """Where Triton is, or will be, installed."""

    def __post_init__(self) -> None:
        if not self.models or not set(self.models) <= set(TENSORS):
            known, got = ", ".join(TENSORS), " ".join(self.models) or "none"
            raise ValueError(f"--models must be one or more of {known}, got {got}")
        for flag in ("port", "http_port", "metrics_port"):
            port = getattr(self, flag)
            if not 0 <= port < 65536:
                raise ValueError(f"--{flag.replace('_', '-')} must be from 0 to 65535, got {port}")
        check(self.knobs)

    @property
    def knobs(self) -> dict[str, int]:
        return {"instances": self.instances, "max_batch_size": self.max_batch_size}


def main(argv: list[str] | None = None) -> None:
    options = parse(TritonOptions, argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end it
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="rrl-models-") as folder:
        models = {name: ModelSpec(name, knobs=options.knobs) for name in options.models}
        try:
            installation = install(options.folder, say=lambda text: print(text, flush=True))
            with running(
                write_repository(Path(folder), models),
                grpc_port=options.port,
                http_port=options.http_port,
                metrics_port=options.metrics_port,
                installation=installation,
            ) as server:
                print(_greeting(server, options.models[0]), flush=True)
                server.process.wait(FOR_EVER_S)
                fail("Triton has ended by itself")
        except RuntimeError as error:
            fail(str(error))


def _greeting(server: RunningTriton, model: str) -> str:
    tune = f"rrl-tune --target {server.address} --metrics-url {server.metrics_url} --model {model}"
    rate_per_s = RATES_PER_S.get(model, 20)
    return (
        f"Triton serves gRPC on {server.address}, HTTP on {server.http_address}, "
        f"metrics on {server.metrics_url}; Ctrl-C ends it. Give it load, and tune it:\n"
        f"  rrl-load --target {server.address} --model {model} --rate {rate_per_s} --duration-s 0\n"
        f"  {tune}"
    )


if __name__ == "__main__":
    main()
