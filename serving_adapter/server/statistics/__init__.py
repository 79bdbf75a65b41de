"""What a model counts of its requests, and learns of the nodes of a cluster."""
