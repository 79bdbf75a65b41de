"""Agents by name, whose networks train so shortly that tests of behaviour are quick."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from baselines import AGENTS
from rrl.testing import MakeAgent

QUICK_STEPS = 15  # of training: how many is a matter of time, not of behaviour


def maker(name: str) -> MakeAgent:
    """Makes this agent with its own settings, but for the training."""
    entry = AGENTS[name]
    settings = _quick(entry.load_settings())
    return lambda task, seed: entry(task, seed, settings=settings)


def _quick(settings: Any) -> Any:
    """The settings with shorter training, where a network is trained."""
    if settings is None or "estimator" not in {field.name for field in fields(settings)}:
        return settings
    return replace(settings, estimator=replace(settings.estimator, max_steps=QUICK_STEPS))
