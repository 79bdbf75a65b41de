"""What is said to the sockets of a model store."""
