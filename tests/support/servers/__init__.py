"""Servers to test against, and what their clients see of them."""
