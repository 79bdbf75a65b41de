"""The queue of requests: what waits, what runs, and when some of it is a batch."""
