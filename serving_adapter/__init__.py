"""The server, its models and its load; and the adapter to any target."""
