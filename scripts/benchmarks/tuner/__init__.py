"""The agents, the simulator and the embedded run."""
