"""What a run opens before it begins: its server, the grid it searches there, and what earlier runs left."""
