"""What is done about late and lost answers: parity models and the other resilience modes."""
