"""What a client saw of each of its requests: the rows that `rrl-load --requests` writes."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from serving_adapter.load.options import LoadOptions


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of their moments. The latencies of the answered ones are what is summarised."""

    at: np.ndarray  # (requests,) Unix time of the moment each was meant to be sent
    latency_ms: np.ndarray  # (requests,) until it was answered, or had failed
    failed: np.ndarray  # (requests,) bool

    @classmethod
    def read(cls, folder: Path) -> Requests:
        """The requests of the load that wrote to this folder."""
        with (folder / "requests.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        at = np.array([float(row["at"]) for row in rows])
        latency_ms = np.array([float(row["latency_ms"]) for row in rows])
        failed = np.array([row["status"] != "OK" for row in rows], dtype=bool)
        return cls(at, latency_ms, failed)._taken(np.argsort(at, kind="stable"))

    @classmethod
    def joined(cls, parts: Iterable[Requests]) -> Requests:
        parts = list(parts)
        if not parts:
            return cls(np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool))
        columns = ("at", "latency_ms", "failed")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    def __len__(self) -> int:
        return len(self.at)

    def between(self, start_at: float, end_at: float) -> Requests:
        """Those meant to be sent in [start, end)."""
        return self._taken(slice(*np.searchsorted(self.at, [start_at, end_at]).tolist()))

    def first(self, duration_s: float) -> Requests:
        """Those of the first so many seconds, from the first of them on."""
        return self.between(self.at[0], self.at[0] + duration_s) if len(self) else self

    def after(self, duration_s: float) -> Requests:
        """Those after the first so many seconds."""
        return self.between(self.at[0] + duration_s, np.inf) if len(self) else self

    @property
    def answered_ms(self) -> np.ndarray:
        return self.latency_ms[~self.failed]

    @property
    def mean_ms(self) -> float:
        """NaN where none was answered; so are the percentiles."""
        return float(self.answered_ms.mean()) if self.answered_ms.size else float("nan")

    @property
    def mean_felt_ms(self) -> float:
        """Of all: one that failed counts as the longest wait for an answer. Infinite if none was answered."""
        return float(self._felt_ms.mean()) if self.answered_ms.size else math.inf

    @property
    def _felt_ms(self) -> np.ndarray:
        return np.where(self.failed, 1e3 * LoadOptions.timeout_s, self.latency_ms)

    def percentile_ms(self, percentile: float) -> float:
        return float(np.percentile(self.answered_ms, percentile)) if self.answered_ms.size else float("nan")

    @property
    def p95_ms(self) -> float:
        return self.percentile_ms(95)

    @property
    def sum_s(self) -> float:
        """The sum of all latencies in seconds; a failed request waited too."""
        return float(self.latency_ms.sum()) / 1e3

    @property
    def sum_felt_s(self) -> float:
        """The same, where one that failed counts as the longest wait: who refuses at once is not cheap."""
        return float(self._felt_ms.sum()) / 1e3

    @property
    def failures(self) -> int:
        return int(self.failed.sum())

    def over(self, limit_ms: float) -> int:
        """How many took longer than this, or failed."""
        return int((self.failed | (self.latency_ms > limit_ms)).sum())

    def _taken(self, index: slice | np.ndarray) -> Requests:
        return Requests(self.at[index], self.latency_ms[index], self.failed[index])
