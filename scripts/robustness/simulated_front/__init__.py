"""The front of rrl-serve with its event loop, clock, processes and clients simulated by a seed.

- `virtual_time`: an event loop whose clock jumps to the next timer and whose selector never waits.
- `processes`: zygotes that speak the real messages over real sockets, in this process.
- `worker`: their workers, which run batches in drawn times.
- `fates`: what goes wrong with them.
- `connection`: calls of the real servicer, from bytes to bytes.
- `checked_models`: models every answer of which tells whose it is.
- `scenario`: what a seed draws: load, faults, changes.
- `clients`: callers of the real servicer, who wait, give up and check what they get.
- `troubles`: deaths, stalls and live changes at drawn moments.
- `leases`: who asked for the lease on the model, and who must have got it.
- `watch`: what must hold, noted as it happens.
- `simulation`: one seed from start to end.

Everything between the servicer and the sockets of the workers is the code that serves.
"""
