"""Machine tables, the compiled simulator, and SERF's queueing model."""
