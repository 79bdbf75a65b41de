"""Programs that nobody has changed, with the store: how they are started, and what they find."""
