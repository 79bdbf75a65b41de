"""The readers of files, pages and texts that come from elsewhere: each is a function of bytes.

A reader may refuse what it is given with ValueError in one sentence. Anything else it raises is a fault.
`READERS` is all that the fuzz knows of them. To add one is to add a line there, and a folder of sound files
to `corpus/readers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from rrl import journal
from rrl.command_line.options.options import TuneOptions
from rrl.queueing.machine import Machine
from rrl.views import intervals_csv
from rrl.views.html_report import page
from rrl.views.reference_table import ReferenceTable
from rrl.views.summary import reference_table_of, summarise
from scripts.robustness.fuzz.readers import of_models
from serving_adapter import model_configuration
from serving_adapter.flags.parsing import read_options_file
from serving_adapter.load.connection import ModelSignature
from serving_adapter.load.options import LoadOptions
from serving_adapter.load.own_requests import OwnRequests
from serving_adapter.load.recordings import recorded_arrivals
from serving_adapter.load.trace_files import read_trace
from serving_adapter.recent_arrivals import unpack_answer
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.workers.fault_file import read_faults
from serving_adapter.target.open_inference.readings import parse_metrics

TENSOR = pb.ModelMetadataResponse.TensorMetadata
RECORDED_MODEL = ModelSignature("echo", [TENSOR(name="tokens", datatype="INT64", shape=[-1, -1])], True)


class Reader(NamedTuple):
    """What reads some bytes, and how many times fewer it is tried than the quick ones."""

    read: Callable[[bytes], object]
    slowness: int = 1


@contextlib.contextmanager
def _file(data: bytes, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rrl-fuzz-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


def _metrics_page(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")  # as it comes from the connection
    for counters_only in (True, False):
        reading = parse_metrics(text, "m", 1.0, counters_only=counters_only)
        if min(reading.success, reading.failure, reading.backlog) < 0:
            raise AssertionError("a count below 0 was read")


def _trace(data: bytes) -> None:
    with _file(data, "trace.csv") as path:
        trace = read_trace(path, 100.0)
        next(trace.times_s(np.random.default_rng(0)), None)


def _recording(data: bytes) -> None:
    with _file(data, "requests.jsonl") as path:
        recorded_arrivals(path)
        OwnRequests(path, RECORDED_MODEL)


def _journal(data: bytes) -> None:
    with _file(data, journal.FILE_NAME) as path:
        journal.read(path.parent)
        journal.read_ending(path.parent)


def _views(data: bytes) -> None:
    """What is read of a journal can be shown."""
    with _file(data, journal.FILE_NAME) as path:
        header, records = journal.read(path.parent)
        if records:
            intervals_csv.write(path.parent / intervals_csv.FILE_NAME, header, records)
            reference_table_of(header, records).write(path.parent / "table.yaml")
            summary = summarise(header, records)
            page.write(path.parent / page.FILE_NAME, header, records, summary)


def _options(data: bytes) -> None:
    with _file(data, "options.yaml") as path:
        refusals = []
        for options in (TuneOptions, ServeOptions, LoadOptions):
            try:
                values = read_options_file(path, options)
                required = {f.name for f in dataclasses.fields(options) if f.default is dataclasses.MISSING}
                if required <= values.keys():
                    options(**values)
            except ValueError as refusal:
                refusals.append(refusal)
        if len(refusals) == 3:
            raise refusals[0]


def _model_configuration(data: bytes) -> None:
    config = model_configuration.parse(data)
    values = model_configuration.knob_values(config)
    model_configuration.check(values)
    model_configuration.edited(config, {"instances": 2, "max_batch_size": 4, "max_queue_delay_us": 10})


def _model_configuration_text(data: bytes) -> None:
    model_configuration.knob_values(model_configuration.parse_pbtxt(data.decode("utf-8", errors="replace")))


def _arrivals(data: bytes) -> None:
    told = unpack_answer(data)
    if len(told.ages_us) != len(told.rows):
        raise AssertionError("arrivals without rows")


def _reference_table(data: bytes) -> None:
    with _file(data, "reference_table.yaml") as path:
        ReferenceTable.read(path).recommend(10.0)


def _faults(data: bytes) -> None:
    with _file(data, "faults.yaml") as path:
        read_faults(path)


def _machine(data: bytes) -> None:
    with _file(data, "machine.npz") as path:
        Machine.load(path)


READERS = {
    "metrics-page": Reader(_metrics_page),
    "trace": Reader(_trace),
    "recording": Reader(_recording),
    "weights": Reader(of_models.weights),
    "exported": Reader(of_models.exported, slowness=500),
    "expression": Reader(of_models.expression),
    "manifest": Reader(of_models.manifest, slowness=10),
    "journal": Reader(_journal),
    "journal-views": Reader(_views, slowness=50),
    "options": Reader(_options),
    "model-configuration": Reader(_model_configuration),
    "model-configuration-text": Reader(_model_configuration_text),
    "arrivals": Reader(_arrivals),
    "reference-table": Reader(_reference_table),
    "faults": Reader(_faults),
    "machine": Reader(_machine),
}
