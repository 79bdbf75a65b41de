"""A public class name means one thing in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support import CHECKOUT

PACKAGES = ("rrl", "envs", "baselines", "serving_adapter", "scripts")
OF_EVERY_COMMAND = {"Options"}  # a benchmark's flags


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path.relative_to(CHECKOUT).as_posix())
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared.keys() <= OF_EVERY_COMMAND, shared
