"""A run: its loop, its limits, its ending, and what protects a target from a killed one."""
