"""The reference page of the agents, written from the table that also makes them."""

from __future__ import annotations

from baselines.agents import markdown_table

PAGE = """\
# Agents

`rrl-tune --agent NAME` and `rrl-compare --agents NAME,NAME` take these names.

{table}

What needs a simulation knows the future: it is a bound, and `rrl-tune` does not take it.

[The default agent](../explanation/default-agent.md) is explained in pictures.
[Add your own](../how-to/add-an-agent.md).
"""


def agents_page() -> str:
    """The whole page."""
    return PAGE.format(table=markdown_table())
