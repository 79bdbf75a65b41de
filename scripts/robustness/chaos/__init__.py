"""Chaos: a real rrl-serve under load while its knobs change and its processes are killed and stopped.

- `checked_model`: the model served; every answer tells whose it is.
- `server`: rrl-serve on one port, started again after it was killed, and its processes by role.
- `load`: clients that check every answer, and what they count.
- `blows`: SIGKILL, and SIGSTOP with SIGCONT later, to a process of a drawn role.
- `changes`: live changes of all knobs and modes, each compared with what the server tells then.
- `tuner`: rrl-tune killed in the middle; its next start must leave the target as found or better.
- `gate`: many may act at once, or one alone.
- `command`: the run, its progress and its table.
"""
