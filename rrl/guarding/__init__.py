"""Pure logic about safety: the guard, what it remembers, and what measured turns show."""
