"""What each decision is called in every log, view and page: who made it, and why.

| decision | who | beside its interval | as the reason of a change |
|---|---|---|---|
| `agent` | agent | | what the agent says of it |
| `rollback` | guard | rolled back to the best known: ... | the guard rolled back: ... |
| `hold` | guard | kept the configuration: ... | the guard kept the configuration: ... |
| `refused` | guard | refused the agent's proposal: ... | the guard refused the agent's proposal: ... |
| `wait` | guard | waits: ... | the best known to be safe, while no change is allowed: ... |
| `schedule` | schedule | | measures the start, or validation |
| `table` | table | by the reference table: ... | the reference table: ... |
| `idle` | schedule | no requests: ... | no requests arrive: ... |
| `again` | again | | another configuration was in force meanwhile |
| `adopt` | others | | another client set it: ... |
| `undone` | target | | the target did not make the change before |
"""

from __future__ import annotations

from typing import NamedTuple

from rrl.records import Decision, Kind

PUT_BACK = "again"
"""The decision of a change that nobody chose: the run's own configuration comes back into force."""

TAKEN_OVER = "adopt"
"""The decision of a change that somebody else made."""

KEPT = "leave"
"""The decision of a change to what the run keeps at its end, as the logs of changes have it."""

UNDONE = "undone"
"""The decision of a change that takes back one that was told, and that the target did not make."""


class DecisionWords(NamedTuple):
    """How a decision is told; `{}` is the reason that its record holds."""

    who: str
    beside: str  # its interval, which names the configuration
    of_change: str


_WORDS: dict[str, DecisionWords] = {
    "agent": DecisionWords("agent", "", "{}"),
    "rollback": DecisionWords("guard", "rolled back to the best known: {}", "the guard rolled back: {}"),
    "hold": DecisionWords("guard", "kept the configuration: {}", "the guard kept the configuration: {}"),
    "refused": DecisionWords(
        "guard", "refused the agent's proposal: {}", "the guard refused the agent's proposal: {}"
    ),
    "wait": DecisionWords("guard", "waits: {}", "the best known to be safe, while no change is allowed: {}"),
    "table": DecisionWords("table", "by the reference table: {}", "the reference table: {}"),
    "idle": DecisionWords("schedule", "no requests: {}", "no requests arrive: {}"),
    PUT_BACK: DecisionWords(PUT_BACK, "", "{}"),
    TAKEN_OVER: DecisionWords("others", "", "{}"),
    UNDONE: DecisionWords("target", "", "{}"),
}
_SCHEDULED = DecisionWords("schedule", "", "measures the start")
_SCHEDULED_VALIDATION = DecisionWords("schedule", "", "validation: measures the best and the start in turns")


def who_decided(decision: str) -> str:
    """`agent`, `guard`, `table`, `schedule` or `PUT_BACK`; first and last changes are of the schedule."""
    return _WORDS.get(decision, _SCHEDULED).who


def remark_in_words(decision: Decision, reason: str) -> str:
    """What is said of a decision beside its interval; empty for what is as planned."""
    return _WORDS.get(decision, _SCHEDULED).beside.format(reason)


def reason_in_words(kind: Kind, decision: Decision, reason: str) -> str:
    """Why an interval changes the configuration, or why the guard did not let it."""
    if decision == "agent" and not reason:
        return "the agent proposes it"
    scheduled = _SCHEDULED_VALIDATION if kind == "validation" else _SCHEDULED
    return _WORDS.get(decision, scheduled).of_change.format(reason)
