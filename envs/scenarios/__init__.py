"""What is simulated: machines, how they depart from the model, loads, and true costs."""
