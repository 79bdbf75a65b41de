"""Parity models (ParM): a late or lost answer is reconstructed from the others of its coding group."""
