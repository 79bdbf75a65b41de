"""SERF's reference table as a command fills it from a profile."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from baselines.serf import SERF, candidates
from baselines.serf_table import filled_table, space_of
from baselines.training import main
from rrl.agent import Task
from rrl.objective import MeanLatency, StrictSLO
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from rrl.views.reference_table import ReferenceTable

MACHINE = Machine.invent(0, cores=8, busy_instances=(1, 2, 4, 6), intra_op_threads=(1, 2, 4, 8))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MACHINE.save("machine.npz")


def test_the_command_writes_what_the_scheduler_does_at_every_load(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--machine", "machine.npz", "--reference-table", "table.yaml"])
    table = ReferenceTable.read(Path("table.yaml"))
    said = capsys.readouterr().out
    assert said.startswith(f"wrote table.yaml: {len(table.levels)} load levels, ")
    serf = SERF(Task(space_of(MACHINE), machine=MACHINE))
    spans = [entry.rate_per_s for entry in table.levels.values()]
    assert all(high == pytest.approx(low, rel=1e-3) for (_, high), (low, _) in pairwise(spans))
    for rate_per_s in np.geomspace(spans[0][0] * 1.01, spans[-1][1] * 0.99, 25):
        entry = table.recommend(float(rate_per_s))
        assert entry is not None
        assert entry.configuration == serf.space.configuration(serf.best(float(rate_per_s)))
    assert len({tuple(entry.configuration.items()) for entry in table.levels.values()}) > 1


def test_the_table_covers_light_loads_and_ends_before_the_largest_capacity() -> None:
    table = filled_table(MACHINE, "m", MeanLatency(), "latency")
    largest_per_s = max(
        MACHINE.capacity_per_s(space_of(MACHINE).configuration(number))
        for number in range(len(space_of(MACHINE)))
    )
    entries = list(table.levels.values())
    assert entries[0].rate_per_s[0] < 0.06 * largest_per_s
    assert 0.9 * largest_per_s < entries[-1].rate_per_s[1] < 1.05 * largest_per_s
    assert [entry.cost for entry in entries] == sorted(entry.cost for entry in entries)


def test_cores_bound_instances_times_threads() -> None:
    space = space_of(MACHINE)
    found = candidates(space, MACHINE, cores=8)
    values = space.values[found]
    assert len(found) < len(space)
    assert (
        values[:, space.names.index("instances")] * values[:, space.names.index("intra_op_threads")] <= 8
    ).all()
    table = filled_table(MACHINE, "m", StrictSLO(500.0), "strict-slo", cores=8)
    for entry in table.levels.values():
        assert entry.configuration["instances"] * entry.configuration["intra_op_threads"] <= 8
    assert table.slo_p95_ms == 500.0


def test_where_nothing_fits_the_cores_nothing_is_left_out() -> None:
    space = ConfigurationSpace.of(instances=[2, 3], intra_op_threads=[2, 4])
    assert len(candidates(space, MACHINE, cores=1)) == len(space)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--machine", "none.npz"], "there is no machine file 'none.npz'"),
        (["--machine", "machine.npz", "--cores", "2", "4"], "at most one number of --cores"),
        (["--prior", "prior.npz"], "--reference-table goes with --machine"),
        ([], "give either --machine"),
        (["--machine", "family:1,2"], "on one machine, got 2"),
        (["--machine", "machine.npz", "--knobs", "instances=20,30"], "lies beyond the machine's table"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--reference-table", "table.yaml"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not Path("table.yaml").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--machine", "machine.npz", "--reference-table", "no/such/folder/table.yaml"])
    assert ended.value.code == 2
    assert "cannot read or write" in capsys.readouterr().err
