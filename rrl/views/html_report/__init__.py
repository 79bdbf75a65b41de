"""The report of a run: one HTML page, a view of its journal, that needs nothing outside itself."""
