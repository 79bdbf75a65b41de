"""A file that TensorBoard reads, without torch: its own writer of such files takes seconds to import."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING

FILES = "events.out.tfevents*"
VERSION = "brain.Event:2"  # TensorBoard expects it in the first event
TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
PNG_SIZE = slice(16, 24)  # width and height in a PNG's first chunk
RGBA = 4


class EventFile:
    """One file of events in `folder`. What was written is on disk after `flush`, or after `close`."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # a fifth of a second

        folder.mkdir(parents=True, exist_ok=True)
        now_s = time.time()
        name = f"events.out.tfevents.{int(now_s):010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self._records = RecordWriter((folder / name).open("xb"))
        self._write(Event(file_version=VERSION, wall_time=now_s))
        self.flush()

    def add_scalar(self, tag: str, value: float, step: int, wall_time_s: float | None = None) -> None:
        self._add(Summary(value=[Summary.Value(tag=tag, simple_value=value)]), step, wall_time_s)

    def add_text(self, tag: str, text: str, step: int = 0, wall_time_s: float | None = None) -> None:
        """Markdown."""
        one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, tensor_shape=one, string_val=[text.encode()])
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=TEXT, tensor=tensor)
        self._add(Summary(value=[value]), step, wall_time_s)

    def add_png(self, tag: str, path: Path) -> None:
        png = path.read_bytes()
        width, height = struct.unpack(">II", png[PNG_SIZE])
        image = Summary.Image(width=width, height=height, colorspace=RGBA, encoded_image_string=png)
        self._add(Summary(value=[Summary.Value(tag=tag, image=image)]), 0, None)

    def add_hparams(self, hparams: Mapping[str, str | int | None], metrics: Mapping[str, float]) -> None:
        """What a run was asked for beside what came of it: a row of TensorBoard's table of runs."""
        from tensorboard.plugins.hparams import summary_v2 as hp

        given = {name: value for name, value in hparams.items() if value is not None}
        columns = [hp.HParam(name) for name in given], [hp.Metric(name) for name in metrics]
        self._add(hp.hparams_config_pb(*columns), 0, None)
        self._add(hp.hparams_pb(given), 0, None)
        for name, value in metrics.items():
            self.add_scalar(name, value, 0)

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def _add(self, summary: Summary, step: int, wall_time_s: float | None) -> None:
        self._write(Event(summary=summary, step=step, wall_time=wall_time_s or time.time()))

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
