"""A lease on a model of our own server keeps two tuners apart, wherever they run and however they call it.

A tuner takes it with `RepositoryModelLoad`, by parameters beside `config`. It is the server's own word, so no
clock, file or name has to be shared. A tuner that slept beyond its end prolongs it only if nobody had it
since. A load without a lease is a person's change by hand, and goes on. A stock Triton knows no such
parameters, so there tuners of different machines are not kept apart.
"""

from __future__ import annotations

EXTENSION = "lease"  # in the server's metadata
OWNER_PARAMETER = "lease_owner"  # a string, told to whoever comes second
DURATION_PARAMETER = "lease_ms"  # an int64; 0 gives the lease back
PROLONGS_PARAMETER = "lease_prolongs"  # a bool; true: refused if another has had it since its owner had
MAX_OWNER_CHARACTERS = 200
MAX_DURATION_MS = 3_600_000
