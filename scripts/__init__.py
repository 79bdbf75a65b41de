"""Benchmarks, the papers' figures, and a stock Triton to try against."""
