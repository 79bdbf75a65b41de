"""Agents and what they believe, on simulated machines."""
