"""The simulator, the agents and all commands but the server's import where Linux' own modules are missing."""

from __future__ import annotations

import subprocess
import sys

AS_ON_WINDOWS = """
import os, signal, sys
import gymnasium, grpc, numba, psutil, rich, scipy.stats, torch, tyro  # these choose by the real platform

MISSING = {"fcntl", "uvloop", "resource", "pwd", "grp", "termios"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "fork", "getuid", "posix_fadvise"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGCHLD", "pthread_sigmask"):
    delattr(signal, name)
"""

TWO_DECISIONS = """
import gymnasium as gym
from baselines import make_agent
from rrl.agent import Task, Transition

env = gym.make("envs:rrl/SimulatedServing-v0").unwrapped
agent = make_agent("guided", Task(env.space, env.objective), seed=1)
observation, _ = env.reset(seed=1)
for _ in range(2):
    action = agent.act(observation)
    following, _, _, _, info = env.step(action)
    agent.update(Transition(observation, action, info["cost"], following, info["measurement"]))
    observation = following
    print("decided", env.space.number_of_action(action))
"""

IMPORTS = """
import rrl.command_line
import rrl.tuning.loop
import baselines.comparison.command_line
import baselines.training
import envs.light_profiling
import envs.live
import serving_adapter.load.command_line
import serving_adapter.target.target
print("imported")
"""

SERVER = """
import serving_adapter.server.command_line
"""


def test_without_linux() -> None:
    result = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS + TWO_DECISIONS + IMPORTS + SERVER],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["decided", "decided", "imported"], (
        result.stderr
    )
    assert result.stderr.splitlines()[-1].startswith("ImportError: the local server needs Linux")
