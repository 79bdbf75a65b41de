"""The Prometheus page: what is told there, and the server that tells it."""
