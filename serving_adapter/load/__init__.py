"""The load generator: arrivals, traces, payloads, and what clients saw."""
