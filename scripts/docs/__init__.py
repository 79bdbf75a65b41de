"""The documentation site: what is generated for it, and how its builder sees the repository."""
