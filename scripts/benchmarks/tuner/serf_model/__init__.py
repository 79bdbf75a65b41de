"""SERF's queueing model against the real server."""
