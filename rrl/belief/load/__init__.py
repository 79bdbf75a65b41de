"""The load: what came, what may come next, and what of it a configuration is offered."""
