"""The report of a run as a tree, and what a test reads from it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

from rrl.views.html_report import page
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs


def view(run: runs.Run, ended: bool = True, **summary: Any) -> RunView:
    header, records = run
    return RunView(header, records, replace(summarise(header, records), **summary), ended)


def shown(run: runs.Run, ended: bool = True, diff: str = "", files: tuple[str, ...] = ()) -> Element:
    return page.page(view(run, ended), diff, files)


def text(element: Element | None) -> str:
    assert element is not None
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip()


def section(root: Element, name: str) -> Element:
    found = root.find(f".//section[@id='{name}']")
    assert found is not None, name
    return found


def by_class(root: Element, name: str) -> list[Element]:
    return [e for e in root.iter() if name in (e.get("class") or "").split()]
