"""The server and the load that a run starts beside itself, as processes that end with it."""
