"""The report, opened and looked at in a real browser that can reach nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from rrl.guarding.choice import ToKeep
from rrl.space import ConfigurationSpace
from rrl.views.exports import write_views
from rrl.views.html_report import page
from rrl.views.summary import summarise
from serving_adapter.target.open_inference.kept_configuration import KeptConfiguration
from tests.support.browser import MISSING, Browser, executable
from tests.support.runs import simulated_runs as runs

pytestmark = pytest.mark.browser

CASES = ("good", "wide", "worse", "troubled", "stock", "unfinished", "empty", "long", "hostile", "knobs")
PAPER_WIDTH = 718  # Of A4 between its margins, in pixels.
HOSTILE = "</script><script>hacked=1</script>\"'<img src=//x.example/y onerror=hacked=1>"

# Asked of the page

OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => {{
  const box = e.getBoundingClientRect();
  return !e.closest('.scrolled, pre, .shapes') && box.width > 0 && (box.right > {} + 1 || box.left < -1);
}}).map(e => e.outerHTML.slice(0, 120))"""

SMALL = """[...document.querySelectorAll('h1, h2, p, dt, dd, th, td')].filter(e =>
  e.innerText.trim() && parseFloat(getComputedStyle(e).fontSize) < 11).map(e => e.innerText)"""

SQUEEZED = """[...document.querySelectorAll('.what-if tbody tr, .importance tbody tr')].map(row =>
  row.getBoundingClientRect().height)"""

CUT_ON_PAPER = """[...document.querySelectorAll('.scrolled > *')].filter(e =>
  e.getBoundingClientRect().right > {} + 1).map(e => e.parentElement.getAttribute('aria-label'))"""

SIZES = """[...document.querySelectorAll('svg[role=img]')].map(svg => {
  const box = svg.getBoundingClientRect();
  return [box.width, box.height];
})"""

MARKS = """(() => {
  const plot = document.querySelector('svg.latency').getBoundingClientRect();
  return [...document.querySelectorAll('svg.latency .mean-dot, svg.latency .mark')].map(e => {
    const box = e.getBoundingClientRect();
    const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    return [e.classList[0], (x - plot.left) / plot.width, (y - plot.top) / plot.height];
  });
})()"""

DRAWN = """[...document.querySelectorAll('.latency path, .load path, .knob path, .balance path')].map(e =>
  [e.getAttribute('class'), e.getBoundingClientRect().width])"""

INSIDE = """(() => {{
  document.getElementById('timeline').scrollIntoView();
  const box = document.querySelector('svg.latency').getBoundingClientRect();
  const count = JSON.parse(document.getElementById('intervals-data').textContent).rows.length;
  return [box.left + box.width * ({} + 0.5) / count, box.top + 50];
}})()"""

UNNAMED = """[...document.querySelectorAll('[role], [tabindex], section, svg.plot')].filter(e =>
  !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).map(e => e.outerHTML.slice(0, 90))"""

UNREACHABLE = """[...document.querySelectorAll('*')].filter(e =>
  /auto|scroll/.test(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth && e.tabIndex < 0
).map(e => e.className)"""

INTRUDE = """(() => {
  const script = document.createElement('script');
  script.textContent = 'hacked = 1';
  document.body.append(script);
  document.body.insertAdjacentHTML('beforeend',
    '<img src="http://x.example/y.png" onerror="hacked = 1"><p style="color: red" id="styled">x</p>');
})()"""

FAINT = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = (colour) => {
    const [r, g, b] = colour.map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter(e => e.getClientRects().length &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && !e.closest('title, script'));
  const contrasts = texts.map(e => {
    const style = getComputedStyle(e);
    const [a, b] = [luminance(rgb(e.closest('svg') ? style.fill : style.color)), luminance(behind(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)];
  });
  return [texts.length, contrasts.filter(([ratio]) => ratio < 4.5)];
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if executable() is None:
        pytest.fail(MISSING)
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind."""
    base = tmp_path_factory.mktemp("pages")
    good = runs.tuned(base / "journal")
    header, records = good
    summary = summarise(header, records)
    worse = summarise(header, records, kept=ToKeep(header.space.number(header.start), "interrupted"))
    hostile = replace(header, model=HOSTILE), [replace(r, reason=HOSTILE, verdict=HOSTILE) for r in records]
    wide = runs.tuned(
        base / "wide-journal",
        intervals=14,
        space=ConfigurationSpace.of(instances=[1, 2, 3, 4], max_batch_size=[1, 2, 3, 4, 6, 8]),
    )
    made = {
        "good": (good, summary),
        "wide": (wide, summarise(*wide)),
        "worse": (good, worse),
        "troubled": (runs.troubled(good), summarise(*runs.troubled(good))),
        "stock": (runs.without_percentiles(good), summary),
        "unfinished": ((header, records[:9]), summarise(header, records[:9])),
        "empty": ((header, []), summarise(header, [])),
        "long": (long := runs.repeated(good, 2000), runs.at_usual_start(summary, long)),
        "hostile": (hostile, summarise(*hostile)),
        "knobs": (knobs := runs.with_ten_more_knobs(good), summarise(*knobs)),
    }
    assert set(made) == set(CASES)
    for name, ((header, records), summary) in made.items():
        (base / name).mkdir()
        kept = KeptConfiguration(runs.FOUND) if name in ("good", "hostile") else None
        if name == "good":
            write_views(base / name, header, records, summary, kept, ended=True)
        else:
            diff = f"-{HOSTILE}\n" if name == "hostile" else ""
            page.write(base / name / "report.html", header, records, summary, name != "unfinished", diff)
    return {name: base / name / "report.html" for name in made}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_without_a_complaint_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    browser.open(pages[name], dark=dark)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [pages[name].as_uri()]
    assert browser.ask("typeof hacked") == "undefined"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [390, 320, 768])
def test_nothing_hangs_over_the_edge(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width=width, height=844, mobile=True)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    outside = browser.ask(OUTSIDE.format(width))
    assert outside == []


def test_headline_and_tables_are_there_to_be_read(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"])
    seen = browser.ask("document.body.innerText")  # what is hidden is not in it
    assert re.search(r"^Mean latency [\d.]+ → [\d.]+ ms$", seen, re.MULTILINE)
    assert re.search(r"\d\.\d\dx lower cost \(90% interval [\d.]+x to [\d.]+x\), measured in turns", seen)
    for words in (
        "failed requests",
        "tuning cost",
        "p99",
        "queue",
        "service",
        "request-seconds",
        "rrl-tune --target",
    ):
        assert words in seen
    assert "the agent: it is the turn of" not in seen  # unasked, as the changes are many
    browser.ask("document.querySelector('details').open = true")
    assert "the agent: it is the turn of" in browser.ask("document.body.innerText")
    small = browser.ask(SMALL)
    assert small == []


def test_the_charts_have_their_marks_inside_them(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["troubled"])
    sizes = browser.ask(SIZES)
    assert len(sizes) >= 8
    assert all(width > 100 and height > 10 for width, height in sizes)
    marks = browser.ask(MARKS)
    assert sum(kind == "mark" for kind, _, _ in marks) == 4
    assert all(0 <= x <= 1 and 0 <= y <= 1 for _, x, y in marks)
    across = [x for kind, x, _ in marks if kind == "mean-dot"]
    assert across == sorted(across)
    assert across[0] < 0.1
    assert across[-1] > 0.9
    drawn = browser.ask(DRAWN)
    assert {name for name, width in drawn if width > 100} >= {
        "mean-line",
        "p95-line",
        "load-area",
        "knob-line",
        "balance-line",
    }
    ticks = browser.ask(
        "[...document.querySelectorAll('.rail .change')].map(e => e.getBoundingClientRect().height)"
    )
    assert len(ticks) == browser.ask("document.querySelectorAll('table.changes tbody tr').length")
    assert min(ticks) > 5


def test_pointing_at_an_interval_tells_its_configuration_and_why(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["good"])
    assert browser.ask("document.querySelector('.readout').hidden")
    x, y = browser.ask(INSIDE.format(3))
    browser.move(x, y)
    told = browser.ask("document.querySelector('.readout').innerText")
    assert "12 s · interval 4 · tuning" in told
    assert "changed: " in told
    assert "the agent: it is the turn of 1" in told
    assert re.search(r"mean [\d.]+ ms · p95 [\d.]+ ms · [\d.]+ requests/s", told)
    cursor = browser.ask("document.querySelector('.cursor').getBoundingClientRect().left")
    assert cursor == pytest.approx(x, abs=15)
    browser.move(5, 5)
    assert browser.ask("document.querySelector('.readout').hidden")


def test_the_keyboard_goes_from_interval_to_interval(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"])
    browser.ask("document.getElementById('timeline').focus()")
    told = []
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        browser.press(key)
        found = re.search(r"interval (\d+)", browser.ask("document.querySelector('.readout').innerText"))
        assert found is not None
        told.append(int(found[1]))
    count = browser.ask("document.querySelectorAll('.mean-dot').length")
    assert told == [1, 2, count, count - 1, 1]
    browser.press("Escape")
    assert browser.ask("document.querySelector('.readout').hidden")


def test_a_tap_shows_an_interval_on_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["troubled"], width=390, height=844, mobile=True)
    x, y = browser.ask(INSIDE.format(8))
    browser.tap(x, y)
    told = browser.ask("document.querySelector('.readout').innerText")
    assert "interval 9" in told
    assert "aborted: the queue is running away" in told
    box = "document.querySelector('.readout').getBoundingClientRect()"
    left, right = browser.ask(f"[{box}.left, {box}.right]")
    assert 0 <= left < right <= 390


def test_tables_are_sorted_by_their_heads(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"])
    rows = "[...document.querySelectorAll('table.landscape tbody tr')]"
    column = rows + ".map(row => parseFloat(row.cells[{}].textContent))"
    costs = browser.ask(column.format(3))
    assert costs == sorted(costs)
    browser.ask("document.querySelectorAll('table.landscape th button')[2].focus()")
    for direction, reverse in (("ascending", False), ("descending", True)):
        browser.ask("document.activeElement.click()")
        counts = browser.ask(column.format(2))
        assert counts == sorted(counts, reverse=reverse)
        assert browser.ask("document.activeElement.closest('th').getAttribute('aria-sort')") == direction


def test_without_a_script_all_is_there(browser: Browser, pages: dict[str, Path]) -> None:
    browser.without_scripts()
    try:
        browser.open(pages["good"])
        assert browser.complaints == []
        browser.ask("document.querySelector('details').open = true")  # a reader clicks on it
        seen = browser.ask("document.body.innerText")
        assert "the agent: it is the turn of" in seen
        assert "Point at the chart" not in seen
        assert browser.ask("document.querySelectorAll('.rail .change > title').length") > 5
        assert browser.ask("document.querySelectorAll('.mean-dot').length") > 10
    finally:
        browser.without_scripts(False)


def test_a_script_from_elsewhere_would_not_run(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"])
    browser.ask(INTRUDE)
    assert browser.ask("fetch('http://x.example/').then(() => 'sent', () => 'refused')") == "refused"
    assert browser.ask("typeof hacked") == "undefined"
    assert browser.ask("getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    assert any("Content Security Policy" in said for said in browser.complaints)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["good", "troubled"])
def test_all_text_stands_out_from_what_is_behind_it(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    browser.open(pages[name], dark=dark)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    texts, faint = browser.ask(FAINT)
    assert texts > 150
    assert faint == []


def test_it_can_be_read_by_those_who_do_not_see_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"])
    assert browser.ask("document.documentElement.lang") == "en"
    assert "→" in browser.ask("document.title")
    headings = browser.ask("[...document.querySelectorAll('h1, h2, h3')].map(e => e.tagName)")
    assert headings[0] == "H1"
    assert set(headings[1:]) == {"H2"}
    assert browser.ask("document.querySelectorAll('main').length") == 1
    unnamed = browser.ask(UNNAMED)
    assert unnamed == []
    assert browser.ask("[...document.querySelectorAll('th')].filter(e => !e.scope).length") == 0
    unreachable = browser.ask(UNREACHABLE)
    assert unreachable == []


def test_a_picture_of_it_is_not_blank_and_dark_is_dark(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    brightness = {}
    for name, dark in (("light", False), ("dark", True)):
        browser.open(pages["good"], dark=dark)
        picture = matplotlib.image.imread(browser.screenshot(tmp_path / f"{name}.png"))[..., :3]
        assert picture.shape[0] > 1500
        colours = np.unique((255 * picture).astype(np.int64) @ (1, 256, 65536))
        assert len(colours) > 50
        ink = np.abs(picture - picture[0, 0]).sum(axis=2) > 0.3
        assert 0.005 < ink.mean() < 0.3
        brightness[name] = float(np.median(picture))
    assert brightness["light"] > 0.9
    assert brightness["dark"] < 0.2


def test_it_prints_on_a_few_white_pages(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.open(pages["good"], dark=True)
    printed = browser.pdf(tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
    browser.send(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert browser.ask("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    browser.send("Emulation.setEmulatedMedia", media="")


def test_no_table_of_a_dozen_knobs_is_cut_on_paper(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["knobs"], width=PAPER_WIDTH)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.ask(CUT_ON_PAPER.format(PAPER_WIDTH)) == []
    browser.send("Emulation.setEmulatedMedia", media="")


def test_remarks_in_tables_are_not_squeezed_on_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"], width=390, height=844, mobile=True)
    heights = browser.ask(SQUEEZED)
    assert len(heights) > 6
    assert max(heights) < 80


def test_2000_intervals_stay_light(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["long"])
    assert browser.ask("document.querySelectorAll('*').length") < 40_000
    browser.ask("document.getElementById('timeline').focus()")
    browser.press("End")
    assert "interval 2000" in browser.ask("document.querySelector('.readout').innerText")


def test_hostile_text_is_shown_as_it_is(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    browser.ask("document.querySelector('details').open = true")
    assert HOSTILE in browser.ask("document.body.innerText")
    assert browser.ask("document.querySelectorAll('img').length") == 0
    browser.ask("document.getElementById('timeline').focus()")
    browser.press("Home")
    browser.press("ArrowRight")
    assert HOSTILE in browser.ask("document.querySelector('.readout').textContent")
    assert browser.ask("typeof hacked") == "undefined"
