"""The levels of the memory hierarchy (TrIMS, section 4.1): GPU, host memory, local disk, remote."""
