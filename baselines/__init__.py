"""Agents to compare with RRL, one module a method, and the names of all agents."""

from __future__ import annotations

from baselines.agents import (
    AGENTS,
    DEFAULT_AGENT,
    NEED_HINDSIGHT,
    NEED_MACHINE,
    AgentEntry,
    AgentFactory,
    agents_for_tuning,
    called_now,
    make_agent,
    markdown_table,
    needs_of,
    typical_decide_ms,
    unknown_agent,
)
from baselines.one_thread import use_one_thread

__all__ = [
    "AGENTS",
    "DEFAULT_AGENT",
    "NEED_HINDSIGHT",
    "NEED_MACHINE",
    "AgentEntry",
    "AgentFactory",
    "agents_for_tuning",
    "called_now",
    "make_agent",
    "markdown_table",
    "needs_of",
    "typical_decide_ms",
    "unknown_agent",
    "use_one_thread",
]
