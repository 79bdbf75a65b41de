"""The options of `rrl-tune`: its flags, which of them go together, and what follows from them."""
