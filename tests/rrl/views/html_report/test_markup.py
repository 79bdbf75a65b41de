"""Elements are written as HTML, and text from outside is escaped."""

from __future__ import annotations

import re
from dataclasses import replace

from rrl.views.html_report.markup import document, tag
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import shown


def test_elements_are_written_as_html() -> None:
    assert document(
        tag("p", "a < b", tag("br"), ["c", None, tag("b", "&", hidden=True)], class_="x y", data_n=1.50)
    ) == ('<!doctype html>\n<p class="x y" data-n="1.5">a &lt; b<br>c<b hidden="">&amp;</b></p>\n')


def test_text_from_outside_is_escaped(good: runs.Run) -> None:
    hostile = "</script><script>alert(1)</script>\"'<img src=x onerror=alert(2)>&amp;\x00\x1b\ud800"
    header, records = good
    records = [replace(r, reason=hostile, verdict=hostile) for r in records]
    html = document(shown((replace(header, model=hostile, agent=hostile), records), diff=f"-{hostile}\n"))
    assert "<script>alert" not in html
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script") == 2
    html.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", html)
