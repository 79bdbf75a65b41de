"""Model stores to test, their clients, and the weights and GPUs that they are given."""
