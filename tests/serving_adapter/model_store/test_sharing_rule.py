"""Sharing pays by the paper's formula, with costs that are measured once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.model_store import sharing_rule
from serving_adapter.model_store.sharing_rule import FILE_NAME, OVERHEAD_SHARE, SharingCosts, measure

COSTS = SharingCosts(overhead_s=20e-6, disk_bytes_per_s=500e6)


def test_the_gain_is_the_papers_formula():
    # b / B - q (o + s), worked out by hand
    assert COSTS.gain_s(100_000_000) == pytest.approx(0.2 - 0.000_020)
    assert COSTS.gain_s(100_000_000, objects=300) == pytest.approx(0.2 - 0.006)
    assert COSTS.gain_s(1_000_000, objects=300) == pytest.approx(0.002 - 0.006)
    assert COSTS.gain_s(10_000) == pytest.approx(0.0)
    assert COSTS.gain_s(9_999) < 0 < COSTS.gain_s(10_001)
    assert COSTS.gain_s(0, objects=0) == 0.0


def test_the_question_to_the_store_is_paid_once_whatever_is_shared():
    asking = COSTS._replace(open_s=0.001)
    for objects in (1, 300):
        assert asking.gain_s(10**8, objects) == pytest.approx(COSTS.gain_s(10**8, objects) - 0.001)


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e11))
def test_a_tensor_has_an_object_of_its_own_where_that_costs_little_of_loading_it(overhead_s, speed):
    costs = SharingCosts(overhead_s, speed)
    smallest = costs.smallest_object_bytes()
    assert (smallest + 1) / speed * OVERHEAD_SHARE >= overhead_s * (1 - 1e-9)
    assert (smallest - 1) / speed * OVERHEAD_SHARE <= overhead_s * (1 + 1e-9)
    assert costs.gain_s(smallest + 1) > 0


def test_the_size_of_the_smallest_object_by_hand():
    assert COSTS.smallest_object_bytes() == pytest.approx(200_000, abs=1)  # 10,000 bytes take 20 us


def test_measuring_gives_positive_numbers_and_leaves_nothing(tmp_path, monkeypatch, open_descriptors):
    monkeypatch.setattr(sharing_rule, "SAMPLE_BYTES", 1 << 20)
    before = open_descriptors()
    costs = measure(tmp_path)
    assert 0 < costs.overhead_s < 1
    assert costs.disk_bytes_per_s > 0
    assert costs.smallest_object_bytes() >= 0
    assert (list(tmp_path.iterdir()), open_descriptors()) == ([], before)


@given(st.floats(1e-9, 1), st.floats(1, 1e12), st.floats(0, 1))
def test_costs_are_read_as_they_were_written(tmp_path_factory, overhead_s, speed, open_s):
    folder = tmp_path_factory.getbasetemp()
    costs = SharingCosts(overhead_s, speed, open_s)
    costs.write(folder)
    assert SharingCosts.read(folder) == costs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "7",
        "{}",
        '{"overhead_s": 1e-5}',
        '{"overhead_s": 1e-5, "disk_bytes_per_s": 1e9, "more": 1}',
        '{"overhead_s": 0, "disk_bytes_per_s": 1e9}',
        '{"overhead_s": 1e-5, "disk_bytes_per_s": 0}',
        '{"overhead_s": -1, "disk_bytes_per_s": 1e9}',
        '{"overhead_s": "1", "disk_bytes_per_s": 1e9}',
        '{"overhead_s": NaN, "disk_bytes_per_s": 1e9}',
    ],
)
def test_costs_that_cannot_be_are_measured_anew(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    assert SharingCosts.read(tmp_path) is None


def test_without_a_file_nothing_has_been_measured(tmp_path):
    assert SharingCosts.read(tmp_path) is None
    assert SharingCosts.read(tmp_path / "absent") is None


def test_costs_written_by_an_earlier_version_without_the_question_are_read(tmp_path):
    (tmp_path / FILE_NAME).write_text(json.dumps({"overhead_s": 1e-5, "disk_bytes_per_s": 1e9}))
    assert SharingCosts.read(tmp_path) == SharingCosts(1e-5, 1e9, 0.0)
