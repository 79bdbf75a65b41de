"""`scripts/bench service-time-prior`: what it tells the models, and how it counts their hits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.belief.learned_prior import shipped
from rrl.belief.service_times import ServiceTimeModel
from rrl.space import ConfigurationSpace
from scripts.benchmarks.tuner.simulated import service_time_prior as bench

SPACE = ConfigurationSpace.parse(bench.SMALL)


@pytest.fixture(autouse=True)
def shipped_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "learned_kinds", lambda: list(shipped()))


def test_a_prediction_that_is_certain_and_right_has_more_nats_than_one_that_is_wrong() -> None:
    machine = bench.GENERATORS["small"].machine(3)
    model = ServiceTimeModel(SPACE)
    for number in (0, 9, 17):
        configuration = SPACE.configuration(number)
        model.add(configuration, bench.telemetry(machine, configuration))
        model.fit()
    numbers = np.arange(20)
    sd = model.standard_deviations(numbers)
    right = bench.hit(model, model.log_times, numbers)
    assert right.nats == pytest.approx(float(np.mean(-np.log(sd * math.sqrt(2 * math.pi)))))
    assert right.quantiles == pytest.approx(np.full(20, 0.5))
    high = model.log_times.copy()
    high[numbers] += 2 * sd
    wrong = bench.hit(model, high, numbers)
    assert wrong.nats == pytest.approx(right.nats - 2)
    assert wrong.quantiles == pytest.approx(np.full(20, 0.97725), abs=1e-4)


def test_no_column_elsewhere_knows_the_machines_own_kind() -> None:
    def kinds(column: str) -> set[str]:
        return {each.kind for each in bench.model_of(column, SPACE, "small")._tried()}

    assert kinds("generic") == {""}
    assert "small" in kinds("alone")
    assert "" not in kinds("alone")
    assert "small" not in kinds("averaged elsewhere") | kinds("alone elsewhere")
    assert {"", "small"} < kinds("averaged")


def test_entries_of_what_was_told_are_not_counted() -> None:
    model = ServiceTimeModel(SPACE)
    configuration = SPACE.configuration(len(SPACE) - 1)
    told = bench.is_of(configuration, model.table.points) & ~model.table.one_by_one
    assert told.sum() == configuration["instances"] * len(model.table.batch)


def test_true_service_times_are_the_machines_own() -> None:
    machine = bench.GENERATORS["small"].machine(1)
    points = np.array([[1.0, 2.0, 4.0, 3.0, 8.0]])
    assert np.exp(bench.true_log_times(machine, points)) == pytest.approx(machine.service_time_s[0, 1, 2, 3])


def test_a_row_of_the_table_tells_coverage_and_bins() -> None:
    nats = dict.fromkeys(bench.COLUMNS, 1.234)
    cells = bench.row("small (2)", 3, nats, np.linspace(0.005, 0.995, 100)).split(" | ")
    assert cells[0] == "| small (2)"
    assert cells[1:7] == ["3", *(["1.23"] * 5)]
    assert cells[7:] == ["50%", "90%", "10 10 10 10 10 10 10 10 10 10 |"]
