"""RRL's Figs. 3 to 6 and 10 and the served machines: what is kept and computed, and each in miniature."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rrl.queueing.machine import Machine
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES
from scripts.figures.rrl import fig3, fig4, fig5, fig6, fig10, machines
from scripts.figures.served import heat_map, measuring
from scripts.figures.served.cross_validation import cheapest, dearest, judged, ratio
from scripts.figures.served.landscape import (
    LatencyLandscape,
    distance_figures,
    pairs,
    rank_correlation,
    typical_ratio_of_rounds,
)
from scripts.figures.served.measuring import in_rounds
from scripts.figures.served.models import DEEPSPEECH, INCEPTION, ModelUnderLoad
from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec

PNG = b"\x89PNG"
TINY = ModelUnderLoad(
    "burn",
    "a tiny model",
    ("size=8", "branches=2"),
    fixed={"intra_op_threads": 1, "max_batch_size": 1},
)
GRID = np.array([(x, y) for y in range(1, 6) for x in range(1, 6)])


def landscape(latency_ms: np.ndarray) -> LatencyLandscape:
    return LatencyLandscape("a landscape", ("inter_op_threads", "instances"), GRID, latency_ms)


def sloping(rounds: int = 3) -> LatencyLandscape:
    """Half as much again with every step of either knob."""
    return landscape(np.repeat(10.0 * 1.5 ** GRID.sum(axis=1)[:, None], rounds, axis=1))


def random(seed: int = 0) -> LatencyLandscape:
    return landscape(np.exp(np.random.default_rng(seed).normal(size=(len(GRID), 1))))


def noisy(seed: int, log_ms: np.ndarray | float = 4.0, rounds: int = 3) -> LatencyLandscape:
    """Latencies of these means, each round a quarter off by luck."""
    noise = np.random.default_rng(seed).normal(0.0, 0.25, (len(GRID), rounds))
    return landscape(np.exp(np.reshape(log_ms, (-1, 1)) + noise))


def test_every_round_has_all_configurations_in_an_order_of_its_own() -> None:
    configurations = [{"instances": k} for k in range(1, 6)]
    asked = in_rounds(INCEPTION, configurations, (14.0, 20.0), 60, 2)
    rounds = [[one for one in asked if one.round == k] for k in range(2)]
    for each in rounds:
        assert sorted((one.configuration["instances"], one.rate_per_s) for one in each) == [
            (k, rate) for k in range(1, 6) for rate in (14.0, 20.0)
        ]
    first, second = ([(one.configuration["instances"], one.rate_per_s) for one in each] for each in rounds)
    assert first != second


def test_pairs_have_distances_in_knob_values() -> None:
    two = LatencyLandscape("", ("a", "b"), np.array([(1, 1), (4, 5)]), np.array([[10.0], [30.0]]))
    distance, difference = pairs(two)
    assert (distance.tolist(), difference.tolist()) == ([5.0], [pytest.approx(3.0)])
    assert len(pairs(two, np.array([0, 0])).distance) == 0


def test_differences_of_a_slope_grow_with_distance_and_those_of_noise_do_not() -> None:
    slope, noise = distance_figures(sloping()), distance_figures(random())
    assert slope.rank_correlation.low > 0
    assert slope.near.estimate == pytest.approx(1.5)
    assert noise.rank_correlation.low < 0 < noise.rank_correlation.high
    assert fig6._claims("slope", slope)[0].reproduces == REPRODUCES
    assert [claim.reproduces for claim in fig6._claims("noise", noise)] == [FAILS, FAILS]


def test_rank_correlation_is_of_ranks() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(x, np.exp(5 * x)) == pytest.approx(1.0)
    assert np.isnan(rank_correlation(x, np.ones(4)))


def test_a_slope_is_versatile_and_smooth_and_noise_is_not_smooth() -> None:
    slope = [claim.reproduces for claim in heat_map.shape_claims(sloping(), sloping().on((1, 2, 3)))]
    noise = [claim.reproduces for claim in heat_map.shape_claims(random(), random(1).on((1, 2, 3)))]
    flat = landscape(np.full((len(GRID), 3), 10.0))
    assert slope[0] == REPRODUCES
    assert slope[1] in (REPRODUCES, PARTLY)
    assert noise[1] == FAILS
    assert heat_map.shape_claims(flat, flat)[0].reproduces == FAILS


def test_a_load_that_slows_all_alike_changes_no_distribution() -> None:
    slope = sloping()
    alike, *_ = heat_map.load_claims(slope, landscape(3 * slope.latency_ms))
    uneven, *_ = heat_map.load_claims(slope, landscape(slope.latency_ms**1.5))
    assert (alike.reproduces, uneven.reproduces) == (FAILS, REPRODUCES)


def test_a_round_judges_what_the_others_choose() -> None:
    latency_ms = np.array([[1.0, 9.0, 9.0], [5.0, 5.0, 5.0], [9.0, 4.0, 3.0]])
    assert cheapest(latency_ms).tolist() == [2, 0, 0]
    assert dearest(latency_ms).tolist() == [0, 2, 2]
    assert judged(latency_ms, cheapest(latency_ms)).tolist() == [9.0, 9.0, 9.0]
    assert np.isnan(judged(latency_ms[:, :1], cheapest(latency_ms[:, :1]))).all()


def test_the_best_of_equal_configurations_is_no_better_on_rounds_that_did_not_choose_it() -> None:
    found = []
    for seed in range(200):
        ms = noisy(seed).latency_ms
        found.append(np.log(ratio(judged(ms, dearest(ms)), judged(ms, cheapest(ms))).estimate))
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(len(found))
    assert np.exp(np.mean(found)) == pytest.approx(1.0, abs=0.1)


def test_noise_alone_makes_no_map_versatile_and_no_configuration_the_best() -> None:
    shown = [heat_map.shape_claims(noisy(k), noisy(k))[0].reproduces for k in range(20)]
    assert shown.count(FAILS) >= 16
    gains = []
    for k in range(100):
        parts = np.split(noisy(k).latency_ms, 5)[:4]
        for part in parts:
            part[0] = parts[0][0]  # sequential execution is in every sweep
        first, *_ = fig3._claims(dict(zip((*fig3.KNOBS, fig3.TOGETHER), parts, strict=True)))
        gains.append(np.log(float(first.ours.split()[0])))
    assert np.exp(np.mean(gains)) == pytest.approx(1.0, abs=0.1)


def test_two_rounds_differ_typically_by_the_median_of_all_pairs() -> None:
    assert typical_ratio_of_rounds(np.array([[1.0, 2.0, 8.0]])) == pytest.approx(4.0)
    sweeps = {name: np.array([[1.0, 8.0], [1.0, 2.0 + k]]) for k, name in enumerate(fig3.KNOBS)}
    assert fig3._claims(sweeps)[-1].ours == f"{np.sqrt(3 * 4):.3f}"  # sequential execution counts once


def test_noise_alone_slows_no_configuration_more_than_others() -> None:
    shown = [heat_map.load_claims(noisy(2 * k), noisy(2 * k + 1, 5.0))[0] for k in range(20)]
    assert [claim.reproduces for claim in shown].count(FAILS) >= 16
    assert all("permuted within rounds" in claim.ours for claim in shown)
    uneven, *_ = heat_map.load_claims(noisy(0), noisy(1, 5.0 + 0.4 * GRID.sum(axis=1)))
    assert uneven.reproduces == REPRODUCES


def test_permutation_deals_the_slow_downs_of_a_round_anew() -> None:
    slower = np.log([[4.0, 1.0], [1.0, 4.0]])
    assert heat_map.unevenness(slower.mean(axis=1)) == pytest.approx(1.0)
    found = np.unique(heat_map.permuted_unevenness(slower).round(6))
    assert found.tolist() == [pytest.approx(1.0), pytest.approx(4.0**0.9)]


def test_what_is_best_at_the_other_load_is_judged_by_another_round_too() -> None:
    shown = [heat_map.load_claims(noisy(2 * k), noisy(2 * k + 1))[1] for k in range(100)]
    assert np.mean([float(claim.ours.split()[0]) for claim in shown]) == pytest.approx(1.0, abs=0.1)


def test_one_round_judges_nothing() -> None:
    one = noisy(0, rounds=1)
    claims = [*heat_map.shape_claims(one, one), *heat_map.load_claims(one, one)]
    assert [claim.ours.split(";")[0] for claim in claims if claim.reproduces == NO_CLAIM] == ["one round"] * 4


def test_the_maps_rows_and_columns_are_the_knobs_values() -> None:
    x, y, grid_ms = sloping().on((1, 3)).grid_ms()
    assert (x.tolist(), y.tolist()) == ([1, 3], [1, 3])
    assert grid_ms[1, 0] == pytest.approx(10 * 1.5**4)
    assert np.isnan(
        LatencyLandscape("", ("a", "b"), np.array([(1, 1), (2, 2)]), np.ones((2, 1))).grid_ms()[2][0, 1]
    )


@contextmanager
def no_server(model: ModelUnderLoad) -> Iterator[None]:
    raise AssertionError("everything was measured before")
    yield


def test_figures_of_the_real_server_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = fig4.Figure4Setting((TINY,), (200.0, 300.0), coarse=(1, 3), fine=(1, 2), requests=8)
    sweeps = fig3.Figure3Setting(TINY, (1, 2), 200.0, 8)
    first = fig4.run(tmp_path, 1, served)
    assert (tmp_path / "rrl-fig4.png").read_bytes().startswith(PNG)
    rows = [json.loads(line) for line in (tmp_path / fig4.ROWS).read_text().splitlines()]
    assert len(rows) == 2 * 7
    assert all(0 < row["server_ms"] < row["latency_ms"] and row["failed"] == 0 for row in rows)
    assert all(
        row["network_ms"] == pytest.approx(row["latency_ms"] - row["server_ms"], abs=2e-3) for row in rows
    )
    assert fig3.run(tmp_path, 1, sweeps).tables[1] == fig4.ROWS
    monkeypatch.setattr(measuring, "loaded_server", no_server)
    assert fig4.run(tmp_path, 1, served) == first
    result = fig6.run(tmp_path, 1, fig6.Figure6Setting(served, 1, "instances=1:4,inter_op_threads=1:3"))
    with (tmp_path / "rrl-fig6.csv").open() as file:
        assert {row["landscape"].split(",")[0] for row in csv.DictReader(file)} == {
            "a tiny model",
            "simulated machine 1000",
        }
    assert len(result.claims) == 2 * 3 + 2
    with pytest.raises(AssertionError, match="measured before"):
        fig4.run(tmp_path, 2, served)


def test_the_stand_in_of_a_gpu_in_miniature(tmp_path: Path) -> None:
    setting = fig5.Figure5Setting(
        "instances=1:3,max_queue_delay_us=0,20000",
        "instances=1:2,max_queue_delay_us=0,2000",
        (61.0, 76.0),
        20,
    )
    result = fig5.run(tmp_path, 1, setting)
    assert (tmp_path / "rrl-fig5.png").read_bytes().startswith(PNG)
    assert "stand-in" in result.title
    assert len(result.claims) == 3


def test_durations_and_tasks_in_miniature(tmp_path: Path) -> None:
    result = fig10.run(tmp_path, 1, fig10.Figure10Setting((TINY,), (), requests=5, minutes=600))
    (row,) = [json.loads(line) for line in (tmp_path / fig10.ROWS).read_text().splitlines()]
    assert len(row["durations_ms"]) == 5
    assert [claim.reproduces for claim in result.claims][-1] in (REPRODUCES, PARTLY)


def test_dynamic_changes_more_than_wiki() -> None:
    wiki, dynamic = (fig10.minutes(name, 1200, 3) for name in ("WiKi", "Dynamic"))
    assert wiki.shape == dynamic.shape == (3, 1200)
    assert fig10.largest_change(wiki).max() < fig10.largest_change(dynamic).min()
    assert wiki.mean() == pytest.approx(14 * 60, rel=0.2)


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu()


def test_tasks_are_the_operators_that_one_request_runs() -> None:
    assert fig10.operators(Model(Sum(), (TensorSpec("x", "FP32", (-1,)),)), 3) == 3


def test_the_spread_of_durations_is_relative() -> None:
    assert fig10.scv(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist() == [0.25, 0.0]


def machine(time_s: float, instances: int = 2) -> Machine:
    one = np.array([1])
    times_s = np.full((1, 1, instances, 1), time_s)
    return Machine(one, one, np.arange(1, instances + 1), one, times_s)


def test_profiles_of_single_threads_make_one_table() -> None:
    parts = {(i, a): machine(i + 0.1 * a) for i in (1, 2) for a in (1, 3)}
    whole = machines.joined(parts)
    assert (whole.inter_op_threads.tolist(), whole.intra_op_threads.tolist()) == ([1, 2], [1, 3])
    assert whole.service_time_s[1, 1, 0, 0] == pytest.approx(2.3)
    both = machines.averaged([machine(1.0), machine(4.0)])
    assert both.service_time_s.ravel().tolist() == [pytest.approx(2.0)] * 2
    any_inter = machines.for_any_inter_op(machine(1.0))
    assert any_inter.largest("inter_op_threads") == 10
    assert any_inter.table({"inter_op_threads": 7})[0, 0] == pytest.approx(1.0)


def test_a_served_machine_in_miniature(tmp_path: Path) -> None:
    setting = machines.MachinesSetting((TINY,), (1,), 5, 16)
    result = machines.run(tmp_path, 1, setting)
    (table,) = result.tables
    measured = Machine.load(tmp_path / table)
    assert measured.service_time_s.shape == (1, 1, 1, 1)
    part = tmp_path / machines.PARTS / "burn-size=8-branches=2-1-1-0.npz"
    machine(1.0, 1).save(part)
    machines.run(tmp_path, 1, setting)  # goes on with what is there
    assert Machine.load(tmp_path / table).service_time_s.ravel().tolist() == [pytest.approx(1.0)]


def test_deepspeech_has_no_inter_op_knob() -> None:
    assert DEEPSPEECH.knobs == ("intra_op_threads", "instances")
