"""What the tuner, the simulator and a comparison take of the machine."""
