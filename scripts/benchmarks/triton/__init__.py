"""A stock Triton, real or simulated, tuned beside its peers."""
