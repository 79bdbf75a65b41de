"""Worker processes: their pool, the zygote they are forked from, shared memory, faults."""
