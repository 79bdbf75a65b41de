"""What a Ray cluster brings and costs: real nodes on this machine."""
