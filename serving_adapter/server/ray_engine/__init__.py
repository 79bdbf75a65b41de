"""Workers on the nodes of a Ray cluster: a driver process, and an agent a node that forks them there."""
