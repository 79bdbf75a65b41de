"""What `rrl-tune watch` feeds forward: the best configuration by load, of its own journal and a table."""

from __future__ import annotations

from contextlib import suppress

from rrl.command_line.options.options import TuneOptions
from rrl.journal import Journal
from rrl.tuning.unattended.watching import BestKnown
from rrl.views.html_report.numbers import ms
from rrl.views.reference_table import FILE_NAME, ReferenceEntry, ReferenceTable, table_path
from rrl.views.summary import reference_table_of


def given_table(options: TuneOptions) -> ReferenceTable | None:
    """The table that a watch is given. ValueError where it is none, or of another objective or limit."""
    if options.reference_table is None or not options.watches:
        return None
    given = options.reference_table
    table = ReferenceTable.read(table_path(given))
    if table.objective != options.objective:
        raise ValueError(
            f"--reference-table {given} is of the objective {table.objective}, "
            f"not {options.objective}: give one of the same"
        )
    if table.slo_p95_ms != options.slo_p95_ms:
        own, wanted = (
            f"a p95 limit of {limit_ms:g} ms" if limit_ms else "no p95 limit"
            for limit_ms in (table.slo_p95_ms, options.slo_p95_ms)
        )
        raise ValueError(
            f"--reference-table {given} is for {own}, and this run for {wanted}: give one for the same"
        )
    return table


class BestByLoad:
    """The reference table of a run that goes on, which stands in its folder; behind it the one given."""

    def __init__(self, log: Journal, given: ReferenceTable | None) -> None:
        self._log, self._given = log, given

    def at(self, rate_per_s: float) -> BestKnown | None:
        """The best known at a load, and written to the folder by then; None where nothing is known."""
        own = reference_table_of(self._log.header, self._log.records)
        own.write(self._log.path.parent / FILE_NAME)
        for table in (own, self._given):
            entry = None if table is None else table.recommend(rate_per_s)
            if entry is None:
                continue
            with suppress(ValueError):  # not on this grid
                return BestKnown(self._log.header.space.number(entry.configuration), _in_words(entry))
        return None


def _in_words(entry: ReferenceEntry) -> str:
    low, high = entry.rate_per_s
    return f"the best known at {ms(low)} to {ms(high)} requests/s"
