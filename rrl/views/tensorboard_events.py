"""TensorBoard events: a view of the journal, written as the run goes."""

from __future__ import annotations

import math
from pathlib import Path

from rrl.knobs import in_words
from rrl.records import Header, Record
from rrl.tuning.listener import Listener
from rrl.views.event_file import FILES, EventFile
from rrl.views.summary import RunSummary

FOLDER = "tensorboard"


class TensorBoardEvents(Listener):
    """Writes every interval's scalars. A resumed run's events are written anew from its journal."""

    def __init__(self, folder: Path, header: Header, records: list[Record]) -> None:
        for earlier in (folder / FOLDER).glob(FILES) if records else ():
            earlier.unlink()
        self._writer = EventFile(folder / FOLDER)
        self._writer.add_text("run", _markdown(header))
        self._header = header
        self._interval = 0
        self._regret = 0.0
        self._start_costs: list[float] = []
        self._rollbacks = self._aborts = self._failures = 0
        for record in records:
            self.measured(record)

    def measured(self, record: Record) -> None:
        m = record.measurement
        self._aborts += bool(m.aborted)
        self._rollbacks += record.decision == "rollback"
        self._failures += record.failures
        scalars = {
            "latency_ms/mean": m.latency.mean_ms,
            "latency_ms/p50": m.latency.p50_ms,
            "latency_ms/p95": m.latency.p95_ms,
            "latency_ms/p99": m.latency.p99_ms,
            "latency_ms/queue": m.queue.mean_ms,
            "latency_ms/service": m.service.mean_ms,
            "latency_ms/network": m.network_ms,
            "load/arrivals_per_s": m.arrival_rate_per_s,
            "load/completions_per_s": m.completion_rate_per_s,
            "load/backlog": m.backlog,
            "server/mean_batch_size": m.mean_batch_size,
            "server/cpu_utilisation": m.cpu_utilisation,
            "server/gpu_utilisation": m.gpu_utilisation,
            "server/failures": self._failures,
            "objective/cost": record.cost,
            "objective/regret_against_start": self._regret_after(record),
            "guard/aborted": self._aborts,
            "guard/rollbacks": self._rollbacks,
            "tuner/decision_ms": record.decision_ms,
            "tuner/apply_ms": record.apply_ms,
        }
        if record.was_in_force:
            scalars |= {f"knobs/{name}": value for name, value in record.configuration.items()}
        for tag, value in scalars.items():
            if math.isfinite(value):
                self._writer.add_scalar(tag, value, self._interval, wall_time_s=record.wall_time_s)
        words = f"{in_words(record.configuration)} ({record.decision})"
        if record.reason or record.verdict:
            words += ": " + "; ".join(filter(None, (record.reason, record.verdict)))
        self._writer.add_text("configuration", words, self._interval, wall_time_s=record.wall_time_s)
        self._writer.flush()
        self._interval += 1

    def finish(self, summary: RunSummary, figure: Path) -> None:
        """The end of the run: its result, and its picture."""
        results = {"result/mean_ms": summary.best.mean_ms, "result/gain": summary.gain}
        header = self._header
        self._writer.add_hparams(
            {
                "agent": header.agent,
                "objective": header.objective,
                "seed": header.seed,
                "model": header.model,
            },
            {name: value for name, value in results.items() if math.isfinite(value)},
        )
        if figure.is_file():
            self._writer.add_png("run", figure)
        self._writer.close()

    def close(self) -> None:
        """Leaves the file as it is, if the run did not come to its end."""
        self._writer.close()

    def _regret_after(self, record: Record) -> float:
        """The sum of (cost - mean cost at the start) over the intervals so far: below 0 once tuning pays."""
        if record.kind == "baseline" and record.learned:
            self._start_costs.append(record.cost)
        if record.counted and math.isfinite(record.cost) and self._start_costs:
            self._regret += record.cost - sum(self._start_costs) / len(self._start_costs)
        return self._regret


def _markdown(header: Header) -> str:
    rows = header.to_json() | {"space": str(header.space)}
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())


def _cell(value: object) -> str:
    """In one line, and no end of the cell: a model's whole configuration has many."""
    return " ".join(str(value).split()).replace("|", "\\|")
