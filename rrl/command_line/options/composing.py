"""`--bls-composing-models`: the models that the tuned one calls. They are tuned with it, for its own latency.

No server tells what a model of the Python backend calls (BLS). The steps of an ensemble are told by its
configuration, so they need no flag.
"""

from __future__ import annotations

from collections.abc import Sequence

FLAG = "--bls-composing-models"


def composing_models(text: str | None) -> list[str]:
    """The models named; none without the flag."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def check_composing(text: str | None, models: Sequence[str]) -> None:
    """ValueError where it cannot be meant beside these `--model`."""
    named = composing_models(text)
    if not named:
        return
    if len(set(named)) < len(named) or "" in named:
        raise ValueError(f"{FLAG} must name models once each, as in tokenizer,bert, got {text!r}")
    if len(models) != 1:
        raise ValueError(f"{FLAG} is of one model, which calls them: name that one with --model")
    if models[0] in named:
        raise ValueError(f"{FLAG} names {models[0]} itself: leave it away, it is tuned with those it calls")
