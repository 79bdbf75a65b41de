"""What a run needs of an environment; every `envs.serving.ServingEnv` is one."""

from __future__ import annotations

from typing import Protocol

from rrl.interval import Interval, Watch
from rrl.space import ConfigurationSpace


class Environment(Protocol):
    """Runs intervals under configurations, which it knows by their numbers."""

    space: ConfigurationSpace

    def run(self, number: int, watch: Watch = ...) -> Interval: ...
