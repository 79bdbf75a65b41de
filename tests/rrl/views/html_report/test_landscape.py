"""Every configuration measured has its place in the landscape, among those of its load."""

from __future__ import annotations

import tracemalloc

from rrl.views.by_load import groups_by_load
from rrl.views.html_report.landscape import Explored, most_influential
from rrl.views.html_report.numbers import ms
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text


def test_the_landscape_lists_every_configuration_measured_cheapest_first(good: runs.Run) -> None:
    header, records = good
    root = section(shown(good), "landscape")
    rows = by_class(root, "landscape")[0].findall("./tbody/tr")
    costs: dict[int, list[float]] = {}
    for r in records:
        if r.learned:
            costs.setdefault(r.number, []).append(r.cost)
    means = sorted((sum(c) / len(c), n) for n, c in costs.items())
    assert len(rows) == len(means)
    for row, (mean, number) in zip(rows, means, strict=True):
        cells = [text(cell) for cell in row.findall("td")]
        configuration = header.space.configuration(number)
        assert cells[:2] == [str(configuration["instances"]), str(configuration["max_batch_size"])]
        assert cells[2] == str(len(costs[number]))
        assert cells[3] == ms(mean)
    badges = [text(badge) for badge in by_class(root, "badge")]
    assert sorted(badges) == ["best", "start"]


def test_the_heat_map_shows_the_lowest_cost_of_each_pair(good: runs.Run) -> None:
    header, records = good
    heat = by_class(section(shown(good), "landscape"), "heat")[0]
    (group,) = groups_by_load(records)
    explored = Explored(group, header.space)
    assert set(most_influential(explored) or ()) == {"instances", "max_batch_size"}
    cells = [text(cell) for cell in heat.findall("./tbody/tr/td")]
    shown_costs = {ms(t.cost.value) + str(t.cost.intervals) for t in explored.tried}
    assert {cell for cell in cells if not cell.startswith("not measured")} == shown_costs
    assert text(by_class(heat, "cheapest")[0]) == ms(explored.tried[0].cost.value) + str(
        explored.tried[0].cost.intervals
    )


def test_a_long_run_is_grouped_by_load_in_little_memory(good: runs.Run) -> None:
    _, records = runs.repeated(good, 6000)
    tracemalloc.start()
    try:
        groups = groups_by_load(records)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, groups)) == sum(r.learned for r in records)
    assert most_bytes < 10e6  # a matrix of all pairs of intervals takes 36 MB as bits of truth alone


def test_one_knob_alone_has_no_heat_map(good: runs.Run) -> None:
    header, records = good
    alone = [r for r in records if r.configuration["max_batch_size"] == 1]
    assert most_influential(Explored(alone, header.space)) is None
    assert not by_class(shown((header, alone)), "heat")


def test_unlike_loads_are_not_compared(good: runs.Run) -> None:
    header, records = good
    busier = [runs.measured(r, arrivals=5 * r.measurement.arrivals) for r in records[3:9]]
    groups = groups_by_load([*records, *busier])
    assert [len(group) for group in groups] == [
        sum(r.learned for r in records),
        sum(r.learned for r in busier),
    ]
    root = shown((header, runs.punctual([*records, *busier])), ended=False)
    assert "At another load" in text(section(root, "landscape"))
    loads = section(root, "loads").findall(".//tbody/tr")
    assert len(loads) >= 2
    assert shown(good).find(".//section[@id='loads']") is None
