"""Late and lost answers: parity models and the other resilience modes."""
