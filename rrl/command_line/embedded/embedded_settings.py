"""What the embedded server and load are started with, from the options of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rrl.command_line.options.option_values import concurrency_of
from rrl.command_line.options.options import TuneOptions
from serving_adapter.load.arrivals import RECORDED, TimestampTrace, make_arrivals
from serving_adapter.load.options import shapes_of
from serving_adapter.load.own_requests import check_requests
from serving_adapter.load.sizes import make_sizes


@dataclass(frozen=True)
class EmbeddedSettings:
    model: str = "minilm"
    rate_per_s: float | None = None  # None: `DEFAULT_UTILISATION` of what the start can serve.
    concurrency: int | None = None  # of a closed loop in place of arrivals at a rate
    arrivals: str = "poisson"
    sizes: str = "fixed:32"
    seed: int = 0
    input_data: Path | None = None  # requests of the user's own
    shape: tuple[str, ...] = ()  # of inputs of variable shape
    time_unit: str | None = None  # of a trace's moments
    note: str = ""  # what of a trace was not taken as its file has it
    target: str = ""  # a server that runs already; empty: one is started
    tls_ca: str | None = None  # of that server


def embedded_settings(options: TuneOptions) -> EmbeddedSettings:
    """ValueError for a load that rrl-load would refuse, as far as that needs no server."""
    is_recorded = options.arrivals == RECORDED
    rate_per_s = options.rate if is_recorded else options.rate or 1.0
    arrivals = make_arrivals(
        options.arrivals, rate_per_s, time_unit=options.time_unit, recording=options.input_data
    )
    if options.input_data is not None:
        _check_readable(options.input_data)
        check_requests(options.input_data)
    shapes_of(options.shape)
    make_sizes(options.sizes, arrivals.sizes if isinstance(arrivals, TimestampTrace) else None)
    if options.rate is None and options.sizes.startswith("trace"):
        raise ValueError("--sizes trace needs a --rate: the server is measured without the trace")
    return EmbeddedSettings(
        model=options.model or "minilm",
        rate_per_s=arrivals.mean_rate_per_s if is_recorded else options.rate,
        concurrency=concurrency_of(options),
        arrivals=options.arrivals,
        sizes=options.sizes,
        seed=options.seed,
        input_data=options.input_data,
        shape=options.shape,
        time_unit=options.time_unit,
        note=arrivals.note if isinstance(arrivals, TimestampTrace) else "",
        target=options.target or "",
        tls_ca=options.tls_ca,
    )


def _check_readable(input_data: Path) -> None:
    try:
        input_data.open("rb").close()
    except OSError as error:
        raise ValueError(
            f"cannot read --input-data {input_data} ({error.strerror}): give a file of requests, as rrl-load "
            "takes it"
        ) from None
