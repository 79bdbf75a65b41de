"""The files that options name: one that cannot be read is told before any server is started or asked."""

from __future__ import annotations

from rrl.command_line.embedded.embedded_settings import embedded_settings
from rrl.command_line.options.options import TuneOptions
from rrl.queueing.machine import Machine
from rrl.views.reference_table import ReferenceTable, table_path


def check_given_files(options: TuneOptions) -> None:
    """ValueError or OSError for the first that is missing, or no such file.

    The journal of a resumed run tells the rest of its load, which is checked once that is read.
    """
    if options.machine is not None:
        Machine.load(options.machine)
    if options.reference_table is not None:
        ReferenceTable.read(table_path(options.reference_table))
    if (options.target is None or options.bench) and options.resume is None:
        embedded_settings(options)
