"""SERF's figures in miniature, and the rules by which they profile and choose."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.figures.result import FAILS, NOT_COMPARABLE, PARTLY, REPRODUCES, VERDICTS, FigureResult
from scripts.figures.serf import (
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig9,
    fig11,
    fig12,
    fig13,
    fig14,
    loads,
    table2,
)
from scripts.figures.serf.profiling import (
    ALIKE,
    AS_PRINTED,
    AS_THE_RANGES,
    Profiled,
    Variation,
    exact_times_s,
    light_profile,
    profiled_times_s,
)
from scripts.figures.serf.workloads import (
    CIFAR_10,
    CORES,
    IMAGENET_1K,
    IMAGENET_22K,
    node_capacities_per_s,
)

LOADS = np.array([0.1, 0.6])
SMALL = replace(IMAGENET_22K, inter=(1,))
FIGURES: dict[str, Callable[[Path], FigureResult]] = {
    "fig2": lambda out: fig2.run(out, 1, requests=200),
    "fig3": lambda out: fig3.run(out, 2),
    "fig4": lambda out: fig4.run(out, 2),
    "fig6": lambda out: fig6.run(out, 2),
    "fig7": lambda out: fig7.run(out, 1, LOADS),
    "fig9": lambda out: fig9.run(out, 1, SMALL, LOADS),
    "fig11": lambda out: fig11.run(out, 1, (CIFAR_10,), (0.5,)),
    "fig12": lambda out: fig12.run(out, 1, (CIFAR_10,), LOADS),
    "fig13": lambda out: fig13.run(out, 1, intervals=2),
    "fig14": lambda out: fig14.run(out, 1, ("minilm",), (0.5,)),
    "table2": lambda out: table2.run(out, 1, (CIFAR_10, IMAGENET_22K), repeats=2),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_in_miniature(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loads, fig7, fig11, fig14):
        monkeypatch.setattr(module, "enough_requests", lambda utilisation: 500)
    result = FIGURES[name](tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*result.pictures, *result.tables}
    assert result.claims
    for table in result.tables:
        with (tmp_path / table).open() as file:
            assert list(csv.DictReader(file))


def test_workloads_have_the_papers_numbers_of_configurations() -> None:
    assert [len(w.configurations) for w in (CIFAR_10, IMAGENET_1K, IMAGENET_22K)] == [20, 40, 80]
    assert len(fig2.CONFIGURATIONS) == 20
    assert all(c["instances"] * c["intra_op_threads"] <= CORES for c in IMAGENET_22K.configurations)


def test_a_profile_of_times_that_do_not_vary_is_exact_and_costs_ten_requests_a_tuple() -> None:
    machine = IMAGENET_22K.machine(0)
    found = light_profile(IMAGENET_22K.configurations, machine, 0, ALIKE)
    assert (found.machine.service_time_s == machine.service_time_s).all()
    times_s = exact_times_s(IMAGENET_22K.configurations, machine)
    rounds = np.ceil(10 / IMAGENET_22K.instances)
    alone_s = times_s[np.arange(80), IMAGENET_22K.instances - 1]
    assert found.cost_s == pytest.approx(float((rounds * alone_s).sum()))


@pytest.mark.parametrize("variation", [AS_THE_RANGES, AS_PRINTED])
def test_a_profile_is_off_by_the_noise_of_its_few_requests(variation: Variation) -> None:
    """The mean of m requests is off by a standard deviation of sqrt(SCV/m)."""
    machine = CIFAR_10.machine(0)
    exact_s = exact_times_s(CIFAR_10.configurations, machine)
    alone = np.arange(20), CIFAR_10.instances - 1
    requests = CIFAR_10.instances * np.ceil(10 / CIFAR_10.instances)
    off = [
        (profiled_times_s(CIFAR_10.configurations, machine, seed, variation)[alone] / exact_s[alone] - 1)
        * np.sqrt(requests)
        for seed in range(60)
    ]
    assert np.std(off) == pytest.approx(np.sqrt(variation.on_one_node), rel=0.1)
    assert abs(np.mean(off)) < 0.1 * np.sqrt(variation.on_one_node)


def test_the_same_seed_profiles_the_same() -> None:
    machine = CIFAR_10.machine(0)
    first, again, other = (light_profile(CIFAR_10.configurations, machine, seed) for seed in (1, 1, 2))
    assert (first.machine.service_time_s == again.machine.service_time_s).all()
    assert first.cost_s == again.cost_s != other.cost_s


def test_fixed_other_is_what_the_paper_defines_on_every_machine_that_is_taken() -> None:
    chosen = fig13.machines_with_other(IMAGENET_22K, 3)
    assert chosen == sorted(set(chosen))
    for seed in range(chosen[-1] + 1):
        serf = fig13._by(IMAGENET_22K, IMAGENET_22K.machine(seed))
        low_per_s, moderate_per_s = fig13._rates_per_s(serf)
        fixed = fig13._fixed(serf, low_per_s, moderate_per_s)
        assert (fixed is not None) == (seed in chosen)
        if fixed is None:
            continue
        low_s, moderate_s = (
            dict(zip(serf.numbers.tolist(), serf.predicted(rate).mean_latency_s, strict=True))
            for rate in (low_per_s, moderate_per_s)
        )
        assert low_s[fixed.low] == min(low_s.values())
        assert moderate_s[fixed.mod] == min(moderate_s.values())
        assert moderate_s[fixed.mod] <= moderate_s[fixed.other] < moderate_s[fixed.low]
        assert low_s[fixed.low] <= low_s[fixed.other] < low_s[fixed.mod]


def test_what_is_surely_not_lower_is_not_even_partly_lower() -> None:
    curves = {name: np.full((3, 6), 1.0) for name in ("fixed-low", "fixed-mod", "fixed-other")}
    verdicts = {
        claim.what: claim.reproduces for claim in fig13._claims(curves | {"SERF": np.full((3, 6), 1.01)}, 2)
    }
    assert verdicts["mean latency of SERF against fixed-other, whole run"] == FAILS
    assert verdicts["mean latency of SERF against fixed-low, low load"] == REPRODUCES  # which is to be equal


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([[1.0, 1.02]], REPRODUCES),
        ([[1.0, 1.04]], PARTLY),
        ([[1.0, 1.05]], FAILS),
        ([[1.0, 1.0], [1.0, np.inf]], FAILS),
    ],
)
def test_the_latency_of_what_serf_takes_is_judged_over_all_loads(
    ratios: list[list[float]], verdict: str
) -> None:
    assert fig12.verdict_of_latency(np.array(ratios)) == verdict


@pytest.mark.parametrize(
    ("moves", "verdict"),
    [([True, True, True], REPRODUCES), ([True, True, False], PARTLY), ([True, False], FAILS)],
)
def test_where_the_best_configuration_goes_is_judged_by_machines(moves: list[bool], verdict: str) -> None:
    assert fig12.verdict_of_machines(np.array(moves)) == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([[1001.0, 9000.0]], REPRODUCES),
        ([[999.0, 9000.0]], PARTLY),
        ([[999.0, 1000.0], [9000.0, 9000.0]], FAILS),
    ],
)
def test_three_orders_of_magnitude_are_judged_on_every_machine(
    ratios: list[list[float]], verdict: str
) -> None:
    assert table2.verdict_of_orders(np.array(ratios), 3) == verdict


@pytest.mark.parametrize(("times", "verdict"), [(1, REPRODUCES), (2, PARTLY), (3, FAILS)])
def test_a_light_profile_that_takes_longer_reproduces_less(
    times: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(*arguments: Any) -> Profiled:
        found = light_profile(*arguments)
        return found._replace(cost_s=times * found.cost_s)

    monkeypatch.setattr(table2, "light_profile", slower)
    claims = table2.run(tmp_path, 1, (CIFAR_10,), repeats=2).claims
    assert claims[0].reproduces == claims[1].reproduces == verdict


def test_too_few_machines_with_a_fixed_other_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fig13, "BETTER", 1e-9)
    with pytest.raises(ValueError, match="of 20 machines 0 have a fixed-other, of 1 wanted"):
        fig13.machines_with_other(IMAGENET_22K, 1)


def test_a_configuration_that_looks_unstable_is_wholly_off() -> None:
    assert fig11._error_percent(np.inf, 1.0) == 100.0
    assert fig11._error_percent(0.9, 1.0) == pytest.approx(10.0)


def test_the_share_in_a_range_is_that_of_a_lognormal() -> None:
    sigma = 0.1
    share = fig5.share_within(100 * np.exp(-sigma), 100 * np.exp(sigma), float(np.expm1(sigma**2)))
    assert share == pytest.approx(0.6827, abs=1e-4)


def test_what_a_law_assumes_is_no_reproduction(tmp_path: Path) -> None:
    for module in (fig3, fig4, fig6):
        for claim in module.run(tmp_path, 2).claims:
            assert claim.reproduces in VERDICTS
            assert (claim.reproduces == NOT_COMPARABLE) == claim.what.endswith("(its law)")


def test_what_follows_from_the_law_of_interference_is_no_reproduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (loads, fig7):
        monkeypatch.setattr(module, "enough_requests", lambda utilisation: 500)
    claims = (*fig7.run(tmp_path, 1, LOADS).claims, *fig12.run(tmp_path, 1, (SMALL,), LOADS).claims)
    laws = [claim for claim in claims if claim.what.endswith("(its law)")]
    assert [claim.paper for claim in laws] == ["it can vary", "service parallelism of only 2 at high load"]
    assert {claim.reproduces for claim in laws} == {NOT_COMPARABLE}


def test_threads_gain_less_with_more_nodes(tmp_path: Path) -> None:
    fig4.run(tmp_path, 2)
    with (tmp_path / "serf-fig4.csv").open() as file:
        gains = {int(r["inter"]): float(r["speedup"]) for r in csv.DictReader(file) if r["intra"] == "8"}
    assert gains[1] > gains[2] > gains[4]


def test_capacities_are_those_of_a_nodes_share() -> None:
    """The cluster's largest capacity is by the rule λ = λ_all/(N/C_inter), with 20 nodes."""
    machine = IMAGENET_22K.machine(0)
    times_s = exact_times_s(IMAGENET_22K.configurations, machine)
    capacities_per_s = node_capacities_per_s(times_s, IMAGENET_22K.configurations)
    for k in (0, 25, 50, 75):
        configuration = IMAGENET_22K.configurations[k]
        units = 20 // configuration["nodes_per_unit"]
        assert capacities_per_s[k] == pytest.approx(units * machine.capacity_per_s(configuration) / 20)


def test_the_time_of_a_node_runs_slower_by_what_a_unit_gets_more() -> None:
    machine = IMAGENET_22K.machine(1)
    slower = fig13._in_time_of_a_node(machine)
    configuration = {"instances": 2, "intra_op_threads": 4}
    for nodes, load in ((1, 1.0), (2, 2.0), (3, 20 / 6), (4, 4.0)):
        unit = configuration | {"nodes_per_unit": nodes}
        np.testing.assert_allclose(slower.table(unit), load * machine.table(unit))


def test_service_times_of_the_real_server_are_read_one_by_one(tmp_path: Path) -> None:
    result = fig5.run(tmp_path, 1, requests=4, threads=(1,))
    measured: Any = [claim for claim in result.claims if "real server" in claim.what]
    assert len(measured) == 1
    with (tmp_path / "serf-fig5.csv").open() as file:
        times_ms = [float(row["service_ms"]) for row in csv.DictReader(file)]
    assert len(times_ms) == 4
    assert min(times_ms) > 0
    verdicts = [claim.reproduces for claim in result.claims[1:]]
    assert verdicts == [FAILS, FAILS, FAILS, REPRODUCES]
