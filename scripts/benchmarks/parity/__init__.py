"""Parity models (ParM): accuracy, tail latency, coding time, killed workers."""
