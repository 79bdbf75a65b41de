"""A reading of a deployment: what all processes of the cluster have counted, once each has told it anew.

Every process of Ray hands what it counted to its node's metrics page from time to time: every 10 s, unless
RAY_metrics_report_interval_ms says otherwise. A reading waits until each process that counts the requests
has done so. Its moment is the mean of theirs. So the requests between two readings are those of the time
between them.
"""

from __future__ import annotations

import http.client
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from serving_adapter.http_exchange import exchanged
from serving_adapter.latency_histogram import CumulativeHistogram
from serving_adapter.resources import cpu_times
from serving_adapter.target.error import TargetError, TargetLost
from serving_adapter.target.ray_serve import metrics_text as page
from serving_adapter.target.ray_serve.counter_ledger import CounterLedger
from serving_adapter.target.ray_serve.deployed import Deployed
from serving_adapter.target.reading import Reading

POLL_S, SLOW_POLL_S = 0.5, 1.0  # a node takes tenths of a second to write its page out
QUICK_S = 2.0  # for so long it is polled quickly, as a cluster may tell its counters every second
GLANCE_S = 5.0  # for so long a reading stands for the next glances
PATIENCE_S = 25.0  # twice Ray's default, and some
FETCHES = "metrics page"  # how the calls are counted
_AT_ONCE = 16  # pages
_NOTHING_YET = CumulativeHistogram((math.inf,), (0,), 0.0)


class RayCounters:
    """Raises TargetError in one sentence; TargetLost once they are `known`."""

    def __init__(
        self, deployed: Deployed, pages: Callable[[], Sequence[str]], calls: Counter[str], timeout_s: float
    ) -> None:
        """`pages()` tells the URLs of the metrics pages."""
        self.known = False
        self.is_local = False  # all nodes are this machine
        self.out_of_reach: set[str] = set()  # pages that did not answer when they were last asked
        self._application = deployed.application
        self._of_deployment = page.of_deployment(deployed.application, deployed.deployment)
        self.by_proxies = deployed.is_ingress()
        self._pages, self._calls, self._timeout_s = pages, calls, timeout_s
        self._ledger = CounterLedger()
        self._of_other_processes: set[str] = set()  # pages that are no node's, as of this reading
        self._silent: dict[str, float] = {}  # the marks of processes that were waited for in vain
        self._gauges: dict[str, list[page.PageSample]] = {}  # by page
        self._service_s, self._batch_s, self._batches, self._served = 0.0, 0.0, 0, 0
        self._executions = 0
        self._last: Reading | None = None

    def read(self, deployed: Deployed) -> Reading:
        """All counters, once every process has told them since the call began."""
        urls = self._pages()
        self._of_other_processes.clear()  # a node that joins may tell of others before it tells of itself
        self._fetch(urls)
        before = self._ledger.marks()
        processes = deployed.proxies() if self.by_proxies else deployed.replicas().keys()
        awaited = {each for each in processes if self._silent.get(each) != before.get(each, 0.0)}
        latest, told_s = before, dict[str, float]()  # when each last told, as all that it told is counted
        looked_s = began_s = time.monotonic()
        end_s = began_s + PATIENCE_S
        while awaited - told_s.keys() and time.monotonic() < end_s:
            time.sleep(POLL_S if looked_s < began_s + QUICK_S else SLOW_POLL_S)
            self._fetch(urls)
            before_s, looked_s = looked_s, time.monotonic()
            now, moment_s = self._ledger.marks(), (before_s + looked_s) / 2
            told_s |= {each: moment_s for each in awaited if now.get(each, 0.0) > latest.get(each, 0.0)}
            latest = now
        if awaited and not told_s:
            raise self._error(
                f"no process of Ray Serve has told its counters within {PATIENCE_S:g} s; see that the "
                "cluster exports its metrics, and that its metrics pages are in reach (--metrics-url)"
            )
        self._silent = {each: before.get(each, 0.0) for each in processes - told_s.keys()}
        return self._reading(sum(told_s.values()) / len(told_s) if told_s else time.monotonic())

    def glance(self) -> Reading:
        """What the pages told some seconds ago. They seldom tell more, and asking costs the nodes."""
        if self._last is not None and time.monotonic() < self._last.at_s + GLANCE_S:
            return self._last
        return self.look()

    def look(self) -> Reading:
        """What the pages tell now, which processes have counted some seconds ago."""
        self._fetch(self._pages())
        return self._reading(time.monotonic())

    # --- the pages ---------------------------------------------------------------------------------

    def _fetch(self, pages: Sequence[str]) -> None:
        """Enters what they tell; TargetError if none answers."""
        urls = [url for url in pages if url not in self._of_other_processes]
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
            texts = list(threads.map(self._text, urls))
        self.out_of_reach = {url for url, text in zip(urls, texts, strict=True) if text is None}
        self._gauges = {url: rows for url, rows in self._gauges.items() if url in urls}
        if not any(texts):
            raise self._error(
                f"none of the cluster's metrics pages answers ({', '.join(urls) or 'none is known'}); give "
                "those in reach with --metrics-url"
            )
        for url, text in zip(urls, texts, strict=True):
            if text is not None:
                self._enter(url, text)

    def _error(self, sentence: str) -> TargetError:
        return TargetLost(sentence) if self.known else TargetError(sentence)

    def _text(self, url: str) -> str | None:
        self._calls[FETCHES] += 1
        with suppress(OSError, http.client.HTTPException, ValueError):
            answer = exchanged(url, self._timeout_s)
            if answer.status == http.client.OK:
                return answer.body.decode(errors="replace")
        return None

    def _enter(self, url: str, text: str) -> None:
        if not page.is_of_a_node(text):
            if text.strip():  # The page of a node that has just joined may be empty.
                self._of_other_processes.add(url)
            return
        try:
            rows = list(page.samples(text))
        except ValueError as error:
            raise self._error(f"{url}: {error}") from None
        self._gauges[url] = [row for row in rows if row.is_gauge]
        self._ledger.enter(url, (row for row in rows if not row.is_gauge))

    # --- the reading -------------------------------------------------------------------------------

    def _reading(self, at_s: float) -> Reading:
        count = self._ledger.count
        served = count(page.ANSWERED, self._of_deployment) + count(page.FAILED, self._of_deployment)
        batches = count(page.BATCHES, self._of_deployment)
        self._add_service(served, batches)
        self._executions = max(self._executions, batches or served)  # without @serve.batch each runs alone
        times = cpu_times() if self.is_local else None
        queued, ongoing = self._gauge(page.QUEUED), self._gauge(page.ONGOING)
        success, failure, timed, request_s, latency = (
            self._counted_by_proxies() if self.by_proxies else self._counted_by_replicas()
        )
        self._last = Reading(
            at_s=at_s,
            success=success,
            failure=failure,
            inference_count=served,
            execution_count=self._executions,
            request_s=request_s,
            queue_s=math.nan,
            service_s=self._service_s,
            timed=timed,
            in_flight=None if queued is None or ongoing is None else queued + ongoing,
            pending=queued,
            latency=latency,
            cpu_busy_s=None if times is None else times.busy_s,
            cpu_available_s=None if times is None else times.available_s,
            comes_in_lumps=True,
        )
        return self._last

    def _counted_by_proxies(self) -> tuple[int, int, int | None, float, CumulativeHistogram | None]:
        answered, failed = (page.of_application(self._application, kind) for kind in (True, False))
        success = sum(self._ledger.count(name, answered) for name in page.REQUESTS.values())
        failure = sum(self._ledger.count(name, failed) for name in page.REQUESTS.values())
        request_s = sum(1e-3 * self._ledger.sum(f"{name}_sum", answered) for name in page.LATENCY.values())
        latency = _joined(self._ledger.histogram(name, answered) for name in page.LATENCY.values())
        return success, failure, None, request_s, latency

    def _counted_by_replicas(self) -> tuple[int, int, int | None, float, CumulativeHistogram | None]:
        """The mean has the wait for a replica in it. The percentiles do not: no page tells both together."""
        success = self._ledger.count(page.ANSWERED, self._of_deployment)
        failure = self._ledger.count(page.FAILED, self._of_deployment)
        parts = (page.PROCESSING, page.ROUTING)
        request_s = sum(1e-3 * self._ledger.sum(f"{name}_sum", self._of_deployment) for name in parts)
        latency = _joined([self._ledger.histogram(page.PROCESSING, self._of_deployment)])
        latency = None if latency is None else latency._replace(sum_s=request_s)
        return success, failure, success + failure, request_s, latency

    def _add_service(self, served: int, batches: int) -> None:
        """Adds the time in service since the last look: that of each request is its batch's, on average."""
        batch_s = 1e-3 * self._ledger.sum(f"{page.BATCH_TIME}_sum", self._of_deployment)
        if batches > self._batches:
            per_batch_s = (batch_s - self._batch_s) / (batches - self._batches)
            self._service_s += per_batch_s * (served - self._served)
            self._batch_s, self._batches, self._served = batch_s, batches, served
        elif not batches:
            self._service_s = 1e-3 * self._ledger.sum(f"{page.PROCESSING}_sum", self._of_deployment)

    def _gauge(self, name: str) -> int | None:
        rows = [row for rows in self._gauges.values() for row in rows if row.name == name]
        return round(sum(row.value for row in rows if self._of_deployment(row.labels))) if rows else None


def _joined(histograms: Iterable[CumulativeHistogram | None]) -> CumulativeHistogram | None:
    """Of requests that came over several protocols; None where these have other bounds."""
    told = [each for each in histograms if each is not None and each.cumulative[-1] > 0]
    if not told:
        return _NOTHING_YET
    if any(each.bounds_s != told[0].bounds_s for each in told):
        return None
    cumulative = tuple(map(sum, zip(*(each.cumulative for each in told), strict=True)))
    return CumulativeHistogram(told[0].bounds_s, cumulative, sum(each.sum_s for each in told))
