"""An agent whose runs fail."""

from __future__ import annotations

import numpy as np

from baselines.agents import AgentEntry
from rrl.agent import Agent, Transition


class FailsToAct(Agent):
    """Can be made, so that only its runs tell."""

    def act(self, observation: np.ndarray) -> np.ndarray:
        raise ValueError("a fault of the agent's own")

    def update(self, transition: Transition) -> None:
        pass


class ExitsToAct(FailsToAct):
    """Ends its program, as scripts do."""

    def act(self, observation: np.ndarray) -> np.ndarray:
        raise SystemExit("an agent's own end")


FAILING = AgentEntry(f"{__name__}:{FailsToAct.__name__}", "fails at its first decision", "", 0.1)
