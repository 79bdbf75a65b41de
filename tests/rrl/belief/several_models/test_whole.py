"""What follows for a model from what its parts take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rrl.belief.several_models.whole import Whole
from rrl.joint import as_whole, together
from rrl.measurement import NODES_CHANGED, LatencySummary, Measurement


def measured(completions: int, mean_ms: float, gap: str = "") -> Measurement:
    latency = LatencySummary(mean_ms, mean_ms, 2 * mean_ms, 2 * mean_ms)
    return Measurement(4.0, completions, completions, 0, latency, latency, latency, 2.0, 1, gap=gap)


def seen(own: Measurement, **parts: Measurement) -> Whole:
    whole = Whole()
    whole.learn(as_whole(own, parts))
    return whole


def test_an_ensemble_takes_what_its_steps_take_and_a_little_more() -> None:
    whole = seen(measured(100, 31.0), first=measured(100, 10.0), second=measured(200, 10.0))
    assert whole.visits == pytest.approx(3.0)
    assert whole.mean(np.array([10.0, 8.0])) == pytest.approx([31.0, 25.0])
    assert whole.tail(np.array([20.0])) == pytest.approx([62.0])


def test_what_a_caller_waits_for_counts_once() -> None:
    whole = seen(measured(100, 40.0), caller=measured(100, 40.0), called=measured(100, 30.0))
    assert whole.mean(np.array([35.0, 30.0])) == pytest.approx([40.0, 30.0])
    assert whole.mean(np.array([0.1]))[0] > 0


def test_without_a_whole_every_request_counts_alike() -> None:
    whole = Whole()
    whole.learn(together({"a": measured(300, 10.0), "b": measured(100, 50.0)}))
    assert not whole.exists
    assert whole.mean(np.array([20.0])) == pytest.approx([20.0])


def test_silence_teaches_nothing() -> None:
    whole = seen(measured(0, float("nan")), first=measured(0, float("nan")))
    assert (whole.visits, whole.exists) == (1.0, False)


def test_requests_are_those_of_the_whole_and_a_gap_of_a_part_is_one_of_all() -> None:
    parts = {"first": measured(100, 10.0), "second": measured(100, 20.0, gap="it restarted")}
    joint = as_whole(measured(100, 31.0), parts)
    assert (joint.completions, joint.latency.mean_ms) == (100, 31.0)
    assert joint.gap == "second: it restarted"
    assert Measurement.from_json(joint.to_json()).models == parts


def test_a_gap_of_the_whole_is_by_others_only_where_no_part_has_another() -> None:
    own = replace(measured(100, 31.0, gap=NODES_CHANGED), gap_by_others=True)
    joint = as_whole(own, {"first": measured(100, 10.0)})
    assert (joint.gap, joint.gap_by_others) == (NODES_CHANGED, True)
    joint = as_whole(own, {"first": measured(100, 10.0, gap="it restarted")})
    assert (joint.gap, joint.gap_by_others) == ("first: it restarted", False)
