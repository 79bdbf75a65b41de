"""The agents of RRL's Figs. 12 to 15, on equal terms.

| contender | what it is |
|---|---|
| `rrl-levels` | Algorithm 1 as the text has it: Q(s, c) with load levels s, and γ = 0 |
| `rrl` | the same with one level, as in the authors' script |
| `rrl-released` | what the script does, its network trained on from the last one |
| `capes` | CAPES with its repository's settings, and training that hardly pauses: 64 steps at a time |
| `deeprm` | DeepRM with its repository's settings, and a softmax for each knob ("output parameters") |
| `deeprm-flat` | the same with one softmax over all configurations, which hardly learns: for a note |
| `guided` | our default agent |
| `capes-default`, `guided-default` | the same two from the server's own start |

What the paper leaves open is the same for both of its rows: δ = 2, α = 1/n, Q_0 = 1/|C|, β = 20/r_min. A
level spans a factor of `LEVEL_RATIO`. Its lower boundary lies `BELOW_THE_MEAN` of a level below the mean
load, so that chance in a measured rate does not split the mean among two levels.

The networks of RRL and CAPES train after every fourth decision. The paper trains them aside, so that no
decision waits for a round (section 5.2). In simulation each round is done before the next decision. A step of
the script's network takes `SCRIPTS_SAMPLES` of the samples and not all, which would take minutes for each
run.

All begin with one configuration that is drawn for each run: it is in force in the first decision. RRL and
DeepRM draw their first configuration from all of the grid in any case, so the server's own start means
nothing to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from baselines import AGENTS, capes, deeprm
from rrl.agent import Agent, Task, Transition
from rrl.load_levels import LoadLevels
from rrl.region.q_learning import PAPER, RELEASED, RRLSettings
from rrl.views import figure_style

LEVEL_RATIO = 2.0
BELOW_THE_MEAN = 0.25  # of a level
TRAIN_EVERY = 4  # decisions
CAPES_STEPS = 64  # in a training
SCRIPTS_SAMPLES = 256  # in a step of the script's network; a random choice, the newest among them
PAPERS_RRL = ("rrl-levels", "rrl", "rrl-released")
"""The rows for RRL. Each has its verdicts."""
PEERS = ("capes", "deeprm")
FROM_DEFAULT = {"capes": "capes-default", "guided": "guided-default"}
_START = int.from_bytes(b"start")  # a stream of random numbers


@dataclass(frozen=True)
class Contender:
    """An agent in the figures: an `AgentFactory`, and how its line looks."""

    label: str
    colour: str
    linestyle: str
    agent: str  # one of AGENTS
    settings: Any = None  # None: the agent's own
    starts: Literal["random", "default"] = "random"

    def __call__(self, task: Task, seed: int, background_training: bool = False) -> Agent:
        agent = AGENTS[self.agent](task, seed, background_training, self.settings)
        if self.starts == "default":
            return agent
        return FirstDecisionGiven(agent, task, random_start(task, seed))

    @property
    def mark(self) -> str:
        """Tells agents of other settings apart, the agent's own ones too. Looks do not count."""
        settings = AGENTS[self.agent].load_settings() if self.settings is None else self.settings
        return f"{zlib.crc32(repr((self.agent, settings, self.starts)).encode()):08x}"


def in_the_pictures(contenders: Iterable[str]) -> list[str]:
    """Those that are drawn: all but our default's second row, whose line would lie on the first."""
    return [name for name in contenders if name != FROM_DEFAULT["guided"]]


def random_start(task: Task, seed: int) -> int:
    """The configuration that all agents of a run begin with."""
    return int(np.random.default_rng([seed, _START]).integers(len(task.space)))


class FirstDecisionGiven(Agent):
    """An agent whose first decision is made for it. It learns from what came of it."""

    def __init__(self, agent: Agent, task: Task, start: int) -> None:
        self._agent = agent
        self._start: np.ndarray | None = task.space.action(start)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self._agent.act(observation) if self._start is None else self._start

    def update(self, transition: Transition) -> None:
        self._start = None
        self._agent.update(transition)

    def finish_training(self) -> None:
        self._agent.finish_training()

    def close(self) -> None:
        self._agent.close()


def levels(rate_per_s: float, ratio: float = LEVEL_RATIO) -> LoadLevels:
    """Load levels of this ratio around a mean load."""
    return LoadLevels(ratio, rate_per_s * ratio ** (0.5 - BELOW_THE_MEAN))


def papers_settings(load_levels: LoadLevels | None) -> RRLSettings:
    """Algorithm 1 with γ = 0."""
    return replace(PAPER, discount=0.0, load_levels=load_levels, train_every=TRAIN_EVERY)


def contenders(rate_per_s: float) -> Mapping[str, Contender]:
    """All of them, at a mean load."""
    capes_settings = replace(capes.PAPER, training_steps=CAPES_STEPS, train_every=TRAIN_EVERY)
    estimator = replace(RELEASED.estimator, minibatch=SCRIPTS_SAMPLES)
    released = replace(RELEASED, train_every=TRAIN_EVERY, estimator=estimator)
    by_knob = replace(deeprm.PAPER, outputs="knobs")
    green, red, orange = figure_style.GREEN, figure_style.VERMILION, figure_style.ORANGE
    return {
        "guided": Contender("our default", figure_style.BLUE, "-", "guided"),
        "rrl-levels": Contender("RRL (levels)", green, "-", "rrl-paper", papers_settings(levels(rate_per_s))),
        "rrl": Contender("RRL (one level)", figure_style.SKY, "-", "rrl-paper", papers_settings(None)),
        "rrl-released": Contender("RRL (script)", green, ":", "rrl-released", released),
        "capes": Contender("CAPES", red, "-", "capes", capes_settings),
        "deeprm": Contender("DeepRM", orange, "-", "deeprm", by_knob),
        "deeprm-flat": Contender("DeepRM (flat)", orange, ":", "deeprm", deeprm.PAPER),
        "capes-default": Contender("CAPES from the default", red, ":", "capes", capes_settings, "default"),
        "guided-default": Contender(
            "our default from the default", figure_style.BLUE, ":", "guided", None, "default"
        ),
    }
