"""The counters of a model as Triton's statistics extension tells them."""

from __future__ import annotations

from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.served_model import MODEL_VERSION, ServedModel
from serving_adapter.server.statistics.model_statistics import BatchTally, Tally


def statistics_message(model: ServedModel) -> pb.ModelStatistics:
    """The counters of a model."""
    statistics = model.statistics
    infer = pb.InferStatistics(
        success=_duration(statistics.success),
        fail=_duration(statistics.failure),
        queue=_duration(statistics.queue),
        **_compute(statistics.compute),
    )
    batches = [
        pb.InferBatchStatistics(batch_size=size, **_compute(tally))
        for size, tally in sorted(statistics.batches.items())
    ]
    return pb.ModelStatistics(
        name=model.name,
        version=MODEL_VERSION,
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
        inference_stats=infer,
        batch_stats=batches,
    )


def _duration(tally: Tally) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=tally.count, ns=tally.ns)


def _compute(tally: BatchTally) -> dict[str, pb.StatisticDuration]:
    return {name: _duration(value) for name, value in vars(tally).items()}
