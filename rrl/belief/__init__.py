"""What is believed of a server and its load: the joint posterior that agent and guard decide by."""
