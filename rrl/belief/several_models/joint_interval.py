"""What one interval tells of how models slow each other: each as it was measured beside the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rrl.belief import telemetry
from rrl.belief.belief import Belief, Work
from rrl.belief.several_models.neighbours import Beside, SeenModel, shapes
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

LEAST_IN_SERVICE = 1e-6


def seen_together(
    members: Sequence[Belief],
    cores: float,
    parts: np.ndarray,
    measured: Sequence[Measurement | None],
    work: Sequence[Work] | None,
) -> list[SeenModel]:
    """What each model took, and what its neighbours add under each hypothesis; none of what served nothing.

    `parts` (M,) are the numbers of the models' configurations. `work` is what was expected of them, once
    something was.
    """
    each = [_at_work(members[k].space, int(parts[k]), m) for k, m in enumerate(measured)]
    busy, instances, threads, of_batch = (np.array([column]) for column in zip(*each, strict=True))
    found = []
    for k, own in enumerate(measured):
        if own is None or not _tells(own):
            continue
        number = int(parts[k])
        slope = np.zeros(1) if work is None else work[k].slope[[number]]
        around = beside_others(k, threads * of_batch, busy, instances, threads, slope)
        log_time = _log_time(members[k], members[k].space.configuration(number), own, float(of_batch[0, k]))
        time = members[k].intervals + 1
        found.append(SeenModel(k, time, number, log_time, shapes(around, cores)[0]))
    return found


def beside_others(
    k: int, own: np.ndarray, busy: np.ndarray, instances: np.ndarray, threads: np.ndarray, slope: np.ndarray
) -> Beside:
    """Model k beside the others: (K, M) each, `slope` (K,).

    `own` are its threads at work while a batch runs, `busy` the instances at work on average.
    """
    others = [j for j in range(own.shape[1]) if j != k]
    of_others, at_work = instances[:, others].sum(axis=1), busy[:, others].sum(axis=1)
    their_threads = (busy * threads)[:, others].sum(axis=1) / np.maximum(at_work, LEAST_IN_SERVICE)
    return Beside(own[:, k], of_others, at_work / np.maximum(of_others, 1.0), their_threads, slope)


def _at_work(
    space: ConfigurationSpace, number: int, measurement: Measurement | None
) -> tuple[float, float, float, float]:
    """Instances at work on average, all instances, the threads of one, and those at work beside a batch."""
    instances = float(space.configuration(number).get("instances", 1))
    threads = float(space.threads[number]) / instances
    if measurement is None or not measurement.duration_s > 0:
        return LEAST_IN_SERVICE, instances, threads, 1.0
    busy = max(LEAST_IN_SERVICE, min(telemetry.batches_in_service(measurement), instances))
    rows = [row for row in telemetry.service_times(measurement) if row.busy_instances > 0]
    if rows:
        of_batch = sum(row.count * row.busy_instances for row in rows) / sum(row.count for row in rows)
    else:
        of_batch = float(telemetry.busy_instances(np.array(busy), np.array(int(instances))))
    return busy, instances, threads, of_batch


def _log_time(
    belief: Belief, configuration: dict[str, int], measurement: Measurement, of_batch: float
) -> float:
    """ln of a batch's service time: of one request, beside nobody of its own, by what its rows expect."""
    model = belief.service_times
    alone = model.table.entry(configuration, 1, 1)
    logs, counts = [], []
    for row in telemetry.service_times(measurement):
        entry = model.table.entry(configuration, row.busy_instances or round(of_batch), row.batch_size)
        beyond = float(model.log_times[entry] - model.log_times[alone])
        logs.append(math.log(row.total_s / row.count) - beyond)
        counts.append(row.count)
    return float(np.average(logs, weights=counts))


def _tells(measurement: Measurement) -> bool:
    """True if batches were served in it."""
    return measurement.arrivals > 0 and bool(telemetry.service_times(measurement))
