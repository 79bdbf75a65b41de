"""Our server: throughput, overhead, live changes."""
