"""Agents on the embedded server, side by side and against a sweep."""
