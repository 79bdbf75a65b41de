"""Readings of a server that speaks the Open Inference Protocol.

They come from the answer to ModelStatistics, or from a metrics page, which tells more. A page is Prometheus
text with Triton's metric names (`nv_...`) or MLServer's (`model_infer_...`). Our own server adds `rrl_...` to
Triton's. A model's series are summed over versions, devices and reasons.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from serving_adapter.target.prometheus_text import SAMPLE, ModelPage, number
from serving_adapter.target.reading import BatchTotals, Reading

# What a glance reads: arrivals, completions, failures, backlog.
GLANCE = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_pending_request_count",
    "rrl_in_flight_request_count",
    "process_start_time_seconds",
)
_TELEMETRY = ("rrl_batch_count", "rrl_batch_service_seconds", "rrl_batch_mean_busy_instances")
_SUCCESS = "nv_inference_request_success"
_DURATION = "nv_inference_request_duration_us"
_MLSERVER = "model_infer_request_"
# With workers, MLServer's page has only the second line before the first request.
_MLSERVER_TYPE_LINES = (f"# TYPE {_MLSERVER}", "# TYPE parallel_request_queue ")
# Triton's other gauges are left out: where the clock of processor time stands still, some are not a number.
_PREFIXES_OF_READINGS = (
    "nv_inference_",
    "nv_gpu_utilization",
    "rrl_",
    _MLSERVER,
    "process_start_time_seconds",
)

_OF_MODELS = ("nv_inference_", _MLSERVER)  # names that mean nothing without their model
_SUMMARY = "_summary_us"  # quantiles are left out: they are not a number (Nan) while nothing was observed

_US = 1e-6
_MAX_NAMED = 10  # models in a sentence


def parse_metrics(text: str, model: str, at_s: float, counters_only: bool = False) -> Reading:
    """The reading in a metrics page fetched at `at_s`; ValueError, in one sentence, if it has none.

    `counters_only` reads what a glance needs (arrivals, completions, backlog) in a tenth of the time.
    """
    prefixes = (*GLANCE, _MLSERVER) if counters_only else _PREFIXES_OF_READINGS
    page = ModelPage(text, model, prefixes, _OF_MODELS, left_out=_SUMMARY)
    if _SUCCESS not in page:
        if any(line in text for line in _MLSERVER_TYPE_LINES):
            return _mlserver_reading(page, at_s)
        raise ValueError(_why_not(text, page, model))
    if not counters_only and _DURATION not in page:
        raise ValueError(
            f"the metrics page tells no latencies ({_DURATION}), which are what is tuned; start Triton "
            "without --metrics-config counter_latencies=false"
        )
    cores = _gauge(page, "rrl_cpu_count")
    return Reading(
        at_s=at_s,
        success=page.count(_SUCCESS),
        failure=page.count("nv_inference_request_failure"),
        inference_count=page.count("nv_inference_count"),
        execution_count=page.count("nv_inference_exec_count"),
        request_s=page.sum(_DURATION) * _US,
        queue_s=page.sum("nv_inference_queue_duration_us") * _US,
        service_s=_US
        * sum(page.sum(f"nv_inference_compute_{part}_duration_us") for part in ("input", "infer", "output")),
        start_time_s=page.gauge("process_start_time_seconds"),
        in_flight=_gauge(page, "rrl_in_flight_request_count"),
        pending=_gauge(page, "nv_inference_pending_request_count"),
        latency=page.histogram("rrl_request_latency_seconds"),
        queue=page.histogram("rrl_request_queue_seconds"),
        service=page.histogram("rrl_request_service_seconds"),
        telemetry=_telemetry(page),
        cpu_busy_s=page.gauge("rrl_cpu_seconds"),
        cpu_available_s=None if cores is None else cores * at_s,
        cores=cores,
        cpus_by_node=tuple(int(cpus) for cpus in page.told("rrl_node_cpu_count")),
        gpu_utilisation=page.mean("nv_gpu_utilization"),
        cluster_changed_share=page.gauge("rrl_cluster_changed_share"),
    )


def _mlserver_reading(page: ModelPage, at_s: float) -> Reading:
    """MLServer times failed requests too, tells neither queue nor batches, and no series before the first."""
    success = page.count("model_infer_request_success_total")
    failure = page.count("model_infer_request_failure_total")
    return Reading(
        at_s=at_s,
        success=success,
        failure=failure,
        inference_count=0,
        execution_count=0,
        request_s=page.sum("model_infer_request_duration_sum"),
        queue_s=math.nan,
        service_s=math.nan,
        timed=page.count("model_infer_request_duration_count"),
        start_time_s=page.gauge("process_start_time_seconds"),
    )


def parse_statistics(model_stats: Iterable[Any], at_s: float) -> Reading:
    """The reading in the answer to ModelStatistics, summed over the model's versions."""
    success = failure = inferences = executions = 0
    request_ns = queue_ns = service_ns = 0
    telemetry: dict[tuple[int, int], BatchTotals] = {}
    for stats in model_stats:
        of = stats.inference_stats
        success += of.success.count
        failure += of.fail.count
        request_ns += of.success.ns
        queue_ns += of.queue.ns
        service_ns += of.compute_input.ns + of.compute_infer.ns + of.compute_output.ns
        inferences += stats.inference_count
        executions += stats.execution_count
        for batch in stats.batch_stats:
            total_s = 1e-9 * (batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns)
            then = telemetry.get((0, batch.batch_size), BatchTotals(0, 0.0))
            telemetry[0, batch.batch_size] = BatchTotals(
                then.batches + batch.compute_infer.count, then.total_s + total_s
            )
    return Reading(
        at_s=at_s,
        success=success,
        failure=failure,
        inference_count=inferences,
        execution_count=executions,
        request_s=1e-9 * request_ns,
        queue_s=1e-9 * queue_ns,
        service_s=1e-9 * service_ns,
        telemetry=telemetry,
        executions_since_load=executions,
        success_since_load=success,
    )


def _telemetry(page: ModelPage) -> dict[tuple[int, int], BatchTotals]:
    """Servers of before `mean_busy` have the first two series alone."""
    totals: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for place, name in enumerate(_TELEMETRY):
        for labels, value in page.series.get(name, ()):
            key = tuple(round(number(labels.get(k, ""), name)) for k in ("busy_instances", "batch_size"))
            totals[key[0], key[1]][place] += number(value, name)
    tells_busy = _TELEMETRY[2] in page
    return {
        key: BatchTotals(round(count), total_s, busy if tells_busy else math.nan)
        for key, (count, total_s, busy) in totals.items()
    }


def _gauge(page: ModelPage, name: str) -> int | None:
    value = page.gauge(name)
    return None if value is None else round(value)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MAX_NAMED])} and {more:,} more"


def _why_not(text: str, page: ModelPage, model: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not text.strip():
        return "the metrics page is empty; its path is usually /metrics, as in http://HOST:8002/metrics"
    if lines and SAMPLE.fullmatch(lines[0].strip()) is None:
        return f"this is not a Prometheus metrics page: it begins {lines[0][:60]!r}; give the metrics URL"
    if model in page.models:
        return (
            f"the metrics page tells of model {model!r}, but not how many requests were answered "
            f"({_SUCCESS}); give the page of the server itself, with all its metrics"
        )
    if model in page.renamed_models:
        return (
            f"the metrics page is a collector's, which has made another label of model {model!r} "
            "(exported_model); give the page of the server itself"
        )
    if page.models:
        others = _some(sorted(page.models))
        return f"the metrics page has no series of model {model!r}, only of {others}"
    return (
        "the metrics page has neither Triton's nv_inference_request_success nor MLServer's "
        "model_infer_request_success, so it is of another kind of server; give that of the target itself"
    )
