"""A server under an embedded load as a run sees it: a target that is lost without it, and its end with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rrl.command_line.embedded.embedded import Embedded, LoadEnded
from rrl.records import Record
from rrl.tuning.listener import Listener
from serving_adapter.answered_totals import FILE_NAME, NO_ANSWERS, read_totals
from serving_adapter.target import OpenInferenceTarget, Reading
from serving_adapter.target.open_inference.whole_target import WholeTarget


class EmbeddedTarget(OpenInferenceTarget):
    """A server with an embedded load. It counts as lost without that, and connecting revives what is ours."""

    def __init__(
        self, embedded: Embedded, metrics_url: str | None = None, control_key: str | None = None
    ) -> None:
        settings = embedded.settings
        model = settings.model if settings.target else None
        super().__init__(embedded.address, model, metrics_url, control_key, settings.tls_ca)
        self._embedded = embedded

    def connect(self, control: bool = True, counters: bool = True) -> None:
        self._embedded.revive(load=counters)
        super().connect(control, counters)

    def read(self) -> Reading:
        """The clients' latencies stand in for the server's where it tells no percentiles of its own."""
        self._embedded.check()
        reading = super().read()
        clients = read_totals(self._embedded.load_folder / FILE_NAME)
        latency = reading.latency or clients or NO_ANSWERS
        return replace(reading, clients=clients, latency=latency)

    def glance(self) -> Reading:
        self._embedded.check()
        return super().glance()


class EmbeddedWholeTarget(EmbeddedTarget, WholeTarget):
    """A model that others are parts of, under an embedded load of its own requests."""

    def __init__(
        self,
        embedded: Embedded,
        parts: Sequence[str],
        metrics_url: str | None = None,
        control_key: str | None = None,
    ) -> None:
        settings = embedded.settings
        whole = settings.model, parts, metrics_url, control_key, settings.tls_ca
        WholeTarget.__init__(self, embedded.address, *whole)
        self._embedded = embedded


class LoadWatch(Listener):
    """Ends the run with the embedded load, and shows what is started again."""

    def __init__(self, embedded: Embedded, view: Listener) -> None:
        self._embedded, self._view = embedded, view
        embedded.notice = view.notice

    def measured(self, record: Record) -> None:
        try:
            self._embedded.check_trace()
        except LoadEnded as ended:
            self._view.notice(str(ended))
            raise
