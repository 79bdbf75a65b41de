"""The whole page: its sections, with style and script inside, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from xml.etree.ElementTree import Element

from rrl.knobs import in_words
from rrl.records import Header, Record
from rrl.views.html_report import charts, next_steps
from rrl.views.html_report.changes_table import changes_table
from rrl.views.html_report.comparison import comparison
from rrl.views.html_report.exploration import exploration
from rrl.views.html_report.headline import headline, title_in_words
from rrl.views.html_report.landscape import landscape
from rrl.views.html_report.learned_section import knob_importance, what_if
from rrl.views.html_report.markup import Children, document, scrolled, tag
from rrl.views.html_report.numbers import ms
from rrl.views.html_report.run_view import LeftOut, RunView
from rrl.views.html_report.timeline import timeline
from rrl.views.html_report.tradeoff_section import tradeoff_section
from rrl.views.html_report.wording import cost_in_words
from rrl.views.summary import RunSummary, reference_table_of

FILE_NAME = "report.html"


def write(
    path: Path,
    header: Header,
    records: Sequence[Record],
    summary: RunSummary,
    ended: bool = False,
    diff: str = "",
    left_out: LeftOut | None = None,
) -> None:
    """Writes the page, with links to what lies in its folder.

    `ended`: the run has put in force what it keeps. `diff`: of the model's whole configuration. `left_out`:
    what came before the records of a journal that was shortened.
    """
    run = RunView(header, records, summary, ended, left_out)
    files = [name for name in next_steps.FILES if (path.parent / name).is_file()]
    path.write_text(document(page(run, diff, files)), encoding="utf-8")


def page(run: RunView, diff: str, files: Sequence[str]) -> Element:
    sections = [
        _section("compare", "Start against best", comparison(run)),
        _section("time", "Over time", timeline(run), changes_table(run) if run.counted else None),
        _section("cost", "What tuning cost", exploration(run)),
        _section("landscape", "What was explored", landscape(run)),
        _section("tradeoff", "Latency against threads", tradeoff_section(run)),
        _section("importance", "Which knobs matter", knob_importance(run)),
        _section("what-if", "What if", what_if(run)),
        _section("loads", "The best for each load", _loads(run)),
        _section("configuration", "The configuration", next_steps.configuration(run, diff)),
        _section("apply", "How to apply it", next_steps.apply(run, files)),
        _section("reproduce", "How to reproduce it", next_steps.reproduce(run)),
        _section("files", "Beside this page", next_steps.beside(files)) if files else None,
    ]
    body = tag(
        "body", charts.symbols(), tag("main", headline(run), *sections), tag("script", _part("report.js"))
    )
    return tag("html", _head(f"{run.header.model}: {title_in_words(run)}"), body, lang="en")


def _head(title: str) -> Element:
    style, script = _part("report.css"), _part("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"rrl-tune {next_steps.software()}"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )


def _section(name: str, title: str, *content: Children) -> Element | None:
    shown = tag(
        "section", tag("h2", title, id=f"{name}-title"), *content, id=name, aria_labelledby=f"{name}-title"
    )
    return shown if len(shown) > 1 else None


def _loads(run: RunView) -> Children:
    """The reference table, or nothing where there was about one load alone."""
    if len(run.by_load) < 2:
        return None
    table = reference_table_of(run.header, run.records)
    rows = [
        tag(
            "tr",
            tag("th", " to ".join(map(ms, entry.rate_per_s)), scope="row"),
            tag("td", in_words(entry.configuration)),
            tag("td", cost_in_words(run.header, entry.cost)),
            tag("td", f"{entry.measurements}"),
            tag("td", f"{entry.configurations}"),
        )
        for entry in table.levels.values()
    ]
    names = ("requests/s", "best known", f"cost ({table.unit})", "intervals", "configurations tried")
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    return scrolled(tag("table", head, tag("tbody", *rows), class_="loads"), "The best for each load")


def _part(name: str) -> str:
    return resources.files("rrl.views.html_report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
