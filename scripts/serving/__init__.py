"""Real servers, loads and agents that several benchmarks start."""
