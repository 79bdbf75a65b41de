"""The machines that look for ways to break the server: fuzz, chaos, soak, and the front by seed."""
