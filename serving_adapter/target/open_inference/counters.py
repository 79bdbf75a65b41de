"""How a target counts: by its metrics page, by ModelStatistics, or by both.

Triton's page counts for as long as the server runs, and tells how many requests wait. Its statistics tell the
sizes of the batches. They begin again when a model is loaded anew, and leave out what earlier loads still
answer. So for the same server the page never counts less than the statistics, and between two readings
without a load both count the same. The page of our own server tells all, and counts as its statistics do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from serving_adapter.resources import Gpus, cpu_times
from serving_adapter.target.error import TargetError
from serving_adapter.target.open_inference.arrival_log import ArrivalLog
from serving_adapter.target.open_inference.metrics_page import MetricsPage, fetched
from serving_adapter.target.reading import Reading

_MAX_REQUESTS_BETWEEN_CALLS = 20  # what a server may answer between the two calls of one reading
_MAX_COUNT_RATIO = 2.0  # two counts of the same requests never differ by more than this factor
_MAX_CONTRADICTIONS = (
    2  # readings in a row that contradict each other: one may be the drain of somebody's load
)
_MAX_STILL_GLANCES = 4  # in a row at a page that does not move, until the server itself is asked
_ADVICE_ON_URL = "give the metrics URL of the target (port 8002 by default for Triton)"


class AnsweredCounts(NamedTuple):
    """Requests answered, by two ways of counting."""

    on_page: int
    by_server: int


class TargetCounters:
    """The counters of one model. Raises TargetError in one sentence; TargetLost once they are `known`."""

    def __init__(
        self,
        address: str,
        statistics: Callable[[], Reading] | None,
        page: MetricsPage | None,
        is_local: bool,
        is_ours: bool,
        arrivals: ArrivalLog | None = None,
    ) -> None:
        self.known = False
        self.page = page
        self._address = address
        self._statistics = statistics
        self._is_local, self._is_ours, self._arrivals = is_local, is_ours, arrivals
        self._gpus = Gpus() if is_local else None
        self._counts: AnsweredCounts | None = None
        self._page_before: Reading | None = None  # but for its moment
        self._contradictions = 0
        self._still: AnsweredCounts | None = None  # since glances see a page stand still, and -1: not asked
        self._still_glances = 0
        self._was_loaded = False  # then the page alone counts what the earlier load still answers
        self._executions_since_load: int | None = None  # at the last reading

    def check_page(self) -> None:
        """TargetError if the page is of another server, as far as one look tells."""
        if self.page is None or self._statistics is None:
            return
        counts = AnsweredCounts(by_server=self._statistics().success, on_page=self._fetch_page().success)
        if self.page.tells_all != self._is_ours:
            kinds = ("that of", "is not") if self.page.tells_all else ("not that of", "is")
            raise TargetError(
                f"the metrics page {self.page.url} is {kinds[0]} an rrl-serve, which {self._address} "
                f"{kinds[1]}, so it is the page of another server; {_ADVICE_ON_URL}"
            )
        ahead = self._is_ours and counts.on_page > counts.by_server + _MAX_REQUESTS_BETWEEN_CALLS
        # Under load many are answered between two calls, but a page is never ahead of what is asked later.
        if ahead and counts.on_page > self._statistics().success:
            self._refuse(counts, "since it started")
        self._check_same_server(counts)

    def drop_page(self) -> None:
        """Goes on without the page, which is another server's."""
        if self.page is not None:
            self.page.close()
        self.page, self._counts = None, None

    def close(self) -> None:
        for part in (self.page, self._gpus):
            if part is not None:
                part.close()

    def read(self) -> Reading:
        """All counters, now."""
        reading = self._with_resources(self._read())
        self._executions_since_load = reading.executions_since_load
        if self._arrivals is None:
            return reading
        # Asked last, so that no arrival before the reading is missing.
        return replace(reading, recent_arrivals=self._arrivals.read())

    def glance(self) -> Reading:
        """Arrivals, completions, failures and backlog only."""
        if self.page is None:
            return self._read()
        reading = fetched(self.page, self.page.glance, self.known)
        self._check_moves(reading.answered)
        return reading

    def loaded(self) -> None:
        """The model was configured, so the two ways of counting may differ until the next reading.

        From now on the page may count more than the statistics.
        """
        self._counts, self._contradictions, self._was_loaded = None, 0, True
        self._still = None

    def began_again(self) -> bool:
        """True if the model's statistics began again since the last reading."""
        if self._statistics is None or self._executions_since_load is None:
            return False
        return (self._statistics().executions_since_load or 0) < self._executions_since_load

    def _read(self) -> Reading:
        if self.page is None:
            assert self._statistics is not None
            return self._statistics()
        if self._statistics is None:
            return self._fetch_page()
        if self._is_ours:
            return self._moving(self._fetch_page())
        statistics = self._statistics()  # first: the page must not count less
        reading = self._fetch_page()
        self._check_same_server(AnsweredCounts(reading.success, statistics.success))
        return replace(
            reading,
            telemetry=statistics.telemetry,
            executions_since_load=statistics.executions_since_load,
            success_since_load=statistics.success_since_load,
        )

    def _fetch_page(self) -> Reading:
        assert self.page is not None
        return fetched(self.page, self.page.read, self.known)

    def _moving(self, reading: Reading) -> Reading:
        """The reading of our own server's page. One that stands still is compared with the statistics.

        It tells the processor time that the server has used. So a live page hardly ever stands still.
        """
        before, self._page_before = self._page_before, replace(reading, at_s=0.0)
        if before == self._page_before and self._statistics is not None:
            now = AnsweredCounts(reading.success, self._statistics().success)
            if now.by_server > now.on_page + _MAX_REQUESTS_BETWEEN_CALLS:
                self._refuse(now, "since it started", stands_still=True)
        return reading

    def _check_moves(self, on_page: int) -> None:
        """TargetError if glances see the page stand still while the server answers requests.

        A run that waits for requests only glances. A page that moves costs nothing more.
        """
        if self._statistics is None:
            return
        if self._still is None or self._still.on_page != on_page:
            self._still, self._still_glances = AnsweredCounts(on_page, -1), 0
            return
        self._still_glances += 1
        if self._still_glances % _MAX_STILL_GLANCES:
            return
        by_server = self._statistics().answered
        if not 0 <= self._still.by_server <= by_server:
            self._still = AnsweredCounts(on_page, by_server)
        elif by_server > self._still.by_server + _MAX_REQUESTS_BETWEEN_CALLS:
            passed = AnsweredCounts(0, by_server - self._still.by_server)
            self._refuse(passed, "in the same time", stands_still=True)

    def _check_same_server(self, now: AnsweredCounts) -> None:
        before, self._counts = self._counts, now
        if now.on_page < now.by_server - _MAX_REQUESTS_BETWEEN_CALLS:
            self._refuse(now, "since the model was loaded")
        if before is None:
            return
        passed = AnsweredCounts(now.on_page - before.on_page, now.by_server - before.by_server)
        self._contradictions = self._contradictions + 1 if self._contradict(passed) else 0
        if self._contradictions >= _MAX_CONTRADICTIONS:
            self._refuse(passed, "in the same time", stands_still=passed.on_page == 0)

    def _contradict(self, passed: AnsweredCounts) -> bool:
        """True if two ways of counting the same requests would not differ by so much."""
        low, high = sorted(passed)
        may_drain = self._was_loaded and passed.on_page > passed.by_server
        return low >= 0 and high > _MAX_COUNT_RATIO * low + _MAX_REQUESTS_BETWEEN_CALLS and not may_drain

    def _refuse(self, counts: AnsweredCounts, when: str, stands_still: bool = False) -> None:
        assert self.page is not None
        why = f"so it is the page of another server; {_ADVICE_ON_URL}"
        if stands_still:
            why = (
                "so it stands still: a cache or proxy may hold it, or it is the page of another server; "
                f"{_ADVICE_ON_URL}"
            )
        raise TargetError(
            f"the metrics page {self.page.url} counts {counts.on_page} answered requests and the server at "
            f"{self._address} itself {counts.by_server} {when}, {why}"
        )

    def _with_resources(self, reading: Reading) -> Reading:
        """Adds what this machine knows of its processors, where the server is on it and does not tell."""
        if not self._is_local:
            return reading
        if reading.cpu_busy_s is None:
            times = cpu_times()
            reading = replace(reading, cpu_busy_s=times.busy_s, cpu_available_s=times.available_s)
        if reading.gpu_utilisation is None and self._gpus is not None:
            reading = replace(reading, gpu_utilisation=self._gpus.utilisation())
        return reading
