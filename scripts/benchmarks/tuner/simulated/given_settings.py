"""`--settings NAME=VALUE` of the benchmarks: the default agent with some of its settings changed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from rrl.guided.settings import GUIDED, GuidedSettings


def guided_settings(texts: Sequence[str]) -> GuidedSettings:
    """The default agent's settings with those given; ValueError with one sentence where one is no good."""
    known = {field.name for field in fields(GuidedSettings)}
    given: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise ValueError(
                f"--settings: {text!r} sets nothing that the default agent knows; give NAME=VALUE"
            )
        given[name] = _value(name, value)
    return replace(GUIDED, **given)


def _value(name: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ValueError(f"--settings: {text!r} is no value for {name}; give a number") from None
