"""The file of faults: it is read whole, or refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import yaml

from serving_adapter.server.workers.fault_file import Delay, Fault, Faults, parse_faults, read_faults


def uniform(low_ms: float, high_ms: float) -> Delay:
    return Delay("uniform", low_ms, high_ms)


def test_a_file_is_read_whole(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text(
        """
        seed: 7
        faults:
          - {kind: slow, workers: 2, delay_ms: [5, 40], always: 4, for_s: [0.5, 1.5]}
          - {kind: tenant, at_s: [0], for_s: 60, queries_per_s: 8.4, query_ms: 50}
          - {kind: stall, pool: redundant, mean_gap_s: 1e-1, for_s: 1}
          - {kind: kill, pool: deployed, at_s: [5, 1.0]}
          - {kind: kill, every_s: 2}
        """
    )
    assert read_faults(path) == Faults(
        seed=7,
        faults=(
            Fault("slow", workers=2, delay_ms=uniform(5.0, 40.0), always=4, for_s=(0.5, 1.5)),
            Fault("tenant", at_s=(0.0,), for_s=(60.0, 60.0), queries_per_s=8.4, query_ms=50.0),
            Fault("stall", pool="redundant", mean_gap_s=0.1, for_s=(1.0, 1.0)),
            Fault("kill", pool="deployed", at_s=(1.0, 5.0)),
            Fault("kill", every_s=2.0),
        ),
    )


def test_no_faults_are_no_error():
    assert parse_faults({"faults": []}) == Faults((), seed=0)


BAD_DOCUMENTS: list[tuple[Any, str]] = [
    (None, "must hold `key: value` lines (seed, faults), got None"),
    ([], "must hold `key: value` lines (seed, faults), got []"),
    ({}, "needs a list `faults`"),
    ({"seed": 1}, "needs a list `faults`"),
    ({"faults": {"kind": "kill"}}, "faults must be a list, got {'kind': 'kill'}"),
    ({"faults": [], "sed": 1}, "the key 'sed' is unknown; the keys are seed, faults"),
    ({"faults": [], "seed": -1}, "seed must be a whole number from 0, got -1"),
    ({"faults": [], "seed": True}, "seed must be a whole number from 0, got True"),
    ({"faults": ["kill"]}, "fault 1: must hold `key: value` lines (kind, "),
]


BAD_FAULTS = [
    ({"every_s": 1}, "needs a kind (slow, tenant, stall, kill)"),
    ({"kind": "maim", "every_s": 1}, "kind must be one of slow, tenant, stall, kill, got 'maim'"),
    ({"kind": ["kill"], "every_s": 1}, "kind must be one of slow, tenant, stall, kill, got ['kill']"),
    ({"kind": "kill", "every": 1}, "the key 'every' is unknown; the keys are kind, workers"),
    ({"kind": "kill", 1: 1}, "the key 1 is unknown"),
    ({"kind": "kill"}, "needs exactly one schedule (at_s, every_s, mean_gap_s, always), got none"),
    ({"kind": "kill", "at_s": [1], "every_s": 1}, "needs exactly one schedule"),
    ({"kind": "kill", "at_s": [1], "every_s": 1}, "got at_s and every_s"),
    ({"kind": "kill", "at_s": [1, -1]}, "at_s must be a list of numbers from 0 to 86400, got [1, -1]"),
    ({"kind": "kill", "at_s": []}, "at_s must be a list of numbers from 0 to 86400, got []"),
    ({"kind": "kill", "at_s": 3}, "at_s must be a list of numbers from 0 to 86400, got 3"),
    ({"kind": "kill", "every_s": 0}, "every_s must be a number from 0.001 to 86400, got 0"),
    ({"kind": "kill", "every_s": -2}, "every_s must be a number from 0.001 to 86400, got -2"),
    ({"kind": "kill", "every_s": None}, "every_s must be a number from 0.001 to 86400, got None"),
    ({"kind": "kill", "every_s": 10**400}, "every_s must be a number from 0.001 to 86400, got 1000"),
    ({"kind": "kill", "mean_gap_s": float("nan")}, "mean_gap_s must be a number from 0.001"),
    ({"kind": "kill", "mean_gap_s": float("inf")}, "mean_gap_s must be a number from 0.001"),
    ({"kind": "kill", "mean_gap_s": "soon"}, "mean_gap_s must be a number from 0.001"),
    ({"kind": "kill", "always": 1}, "a kill has no end, so `always` does not fit it"),
    ({"kind": "kill", "every_s": 1, "for_s": 1}, "for_s is for slow, tenant and stall, not for a kill"),
    ({"kind": "kill", "every_s": 1, "workers": 0}, "workers must be a whole number from 1 to 1000, got 0"),
    (
        {"kind": "kill", "every_s": 1, "workers": 1.5},
        "workers must be a whole number from 1 to 1000, got 1.5",
    ),
    ({"kind": "kill", "every_s": 1, "pool": "none"}, "pool must be one of all, deployed, redundant"),
    ({"kind": "stall", "every_s": 1}, "a stall needs for_s"),
    ({"kind": "stall", "every_s": 1, "for_s": 0}, "for_s must be a number from 0.001 to 86400 or a range"),
    ({"kind": "stall", "every_s": 1, "for_s": [2, 1]}, "or a range [LOW, HIGH] of such, got [2, 1]"),
    ({"kind": "stall", "every_s": 1, "for_s": [1, 2, 3]}, "or a range [LOW, HIGH] of such, got [1, 2, 3]"),
    ({"kind": "stall", "every_s": 1, "for_s": 1, "delay_ms": 5}, "delay_ms is for slow, not for a stall"),
    ({"kind": "stall", "always": 0, "for_s": 1}, "always must be a whole number from 1 to 1000, got 0"),
    ({"kind": "slow", "every_s": 1, "for_s": 1}, "a slow needs delay_ms"),
    ({"kind": "tenant", "every_s": 1, "for_s": 1, "query_ms": 50}, "a tenant needs queries_per_s"),
    ({"kind": "slow", "every_s": 1, "for_s": 1, "delay_ms": 1, "query_ms": 5}, "query_ms is for tenant, not"),
    ({"kind": "slow", "every_s": 1, "delay_ms": 1}, "a slow needs for_s"),
    ({"kind": "slow", "every_s": 1, "for_s": 1, "delay_ms": [-5, 5]}, "delay_ms must be a number from 0"),
]


@pytest.mark.parametrize(
    ("document", "sentence"),
    BAD_DOCUMENTS + [({"faults": [{"kind": "kill", "every_s": 1}, bad]}, text) for bad, text in BAD_FAULTS],
)
def test_a_bad_document_is_refused_in_one_sentence(document, sentence):
    with pytest.raises(ValueError, match=r"^.*\Z") as refused:
        parse_faults(document)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 250


def test_a_bad_fault_is_named_by_its_number_and_file(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text(yaml.safe_dump({"faults": [{"kind": "kill", "every_s": 1}, {"kind": "kill"}]}))
    with pytest.raises(ValueError, match=f"^{path}: fault 2: needs exactly one schedule"):
        read_faults(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot read the faults file .*: No such file or directory"),
        (b"\xff\xfe\xff", "is not a YAML file: it is not UTF-8 text"),
        (b"faults: [", "is not a YAML file: while parsing"),
        (b"faults: 2001-99-99", "is not a YAML file: month must be in 1..12"),
        (b"", "must hold `key: value` lines"),
    ],
)
def test_what_is_no_yaml_file_is_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "faults.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as refused:
        read_faults(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_server_refuses_a_bad_faults_file_in_one_sentence(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{kind: kill}]")
    command = [sys.executable, "-m", "serving_adapter.server.command_line", "--faults", path]
    ended = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    sentence = "fault 1: needs exactly one schedule (at_s, every_s, mean_gap_s, always), got none"
    assert ended.stderr == f"{path}: {sentence} (see docs/reference/commands.md)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20", Delay("uniform", 20.0, 20.0)),
        ("[5, 40]", Delay("uniform", 5.0, 40.0)),
        ("{median: 5, sigma: 1}", Delay("log-normal", 5.0, 1.0)),
        ("{mean: 10}", Delay("exponential", 10.0, 0.0)),
    ],
)
def test_the_distributions_of_a_delay_have_the_mean_that_they_say(text, expected):
    document = f"faults: [{{kind: slow, at_s: [0], for_s: 1, delay_ms: {text}}}]"
    (fault,) = parse_faults(yaml.safe_load(document)).faults
    assert fault.delay_ms == expected
    rng = np.random.default_rng(0)
    drawn_ms = [expected.draw_ms(rng) for _ in range(20_000)]
    assert np.mean(drawn_ms) == pytest.approx(expected.mean_ms, rel=0.05)
    assert min(drawn_ms) >= 0


@pytest.mark.parametrize("text", ["{median: 5}", "{mean: 5, sigma: 1}", "{median: -1, sigma: 1}", "[1]", "x"])
def test_a_delay_of_no_known_distribution_is_refused(text):
    document = f"faults: [{{kind: slow, at_s: [0], for_s: 1, delay_ms: {text}}}]"
    with pytest.raises(ValueError, match="delay_ms must be a number from 0"):
        parse_faults(yaml.safe_load(document))
