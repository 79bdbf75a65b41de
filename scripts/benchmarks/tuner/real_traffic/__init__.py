"""What rrl-tune leaves in force under bursts and beside a neighbour."""
