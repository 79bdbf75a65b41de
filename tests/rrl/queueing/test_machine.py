from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rrl.queueing.machine import AXES, Machine


def a_machine(**changes: object) -> Machine:
    fields: dict[str, object] = {
        "inter_op_threads": [1, 2],
        "intra_op_threads": [1, 4],
        "busy_instances": [1, 2, 8],
        "batch_size": [1, 4, 16],
        "service_time_s": np.arange(1.0, 37.0).reshape(2, 2, 3, 3),
    }
    return Machine(**{name: np.asarray(value) for name, value in (fields | changes).items()})


def test_a_saved_machine_loads_as_it_was(tmp_path: Path) -> None:
    machine = Machine.invent(3)
    machine.save(tmp_path / "node.machine")
    loaded = Machine.load(tmp_path / "node.machine")
    for name in (*AXES, "service_time_s"):
        assert np.array_equal(getattr(machine, name), getattr(loaded, name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service_time_s": np.ones((2, 2, 3))}, "shape"),
        ({"service_time_s": np.full((2, 2, 3, 3), np.nan)}, "positive number"),
        ({"service_time_s": np.zeros((2, 2, 3, 3))}, "positive number"),
        ({"service_time_s": np.full((2, 2, 3, 3), np.inf)}, "positive number"),
        ({"service_time_s": np.full((2, 2, 3, 3), "1")}, "positive number"),
        ({"batch_size": [1, 4, 4]}, "ascend"),
        ({"busy_instances": [2, 1, 8]}, "ascend"),
        ({"intra_op_threads": [0, 4]}, "ascend"),
        ({"inter_op_threads": [[1, 2]]}, "one-dimensional"),
        ({"inter_op_threads": [1.0, 2.0]}, "integers"),
    ],
)
def test_a_wrong_table_is_refused_in_one_sentence(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        a_machine(**changes)
    arrays = {name: getattr(a_machine(), name) for name in (*AXES, "service_time_s")} | changes
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(ValueError, match=rf"wrong\.npz.*{message}"):
        Machine.load(tmp_path / "wrong.npz")


def test_files_that_are_no_machines_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no machine file"):
        Machine.load(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="cannot read"):
        Machine.load(tmp_path)
    (tmp_path / "text.npz").write_text("not a machine")
    (tmp_path / "empty.npz").touch()
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "pickled.npz", batch_size=np.array([{}]))
    a_machine().save(tmp_path / "whole.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-100])
    for name in ("text.npz", "empty.npz", "array.npy", "pickled.npz", "cut.npz"):
        with pytest.raises(ValueError, match=f"cannot read.*{name}"):
            Machine.load(tmp_path / name)
    np.savez(tmp_path / "some.npz", batch_size=[1], busy_instances=[1])
    with pytest.raises(ValueError, match="lacks inter_op_threads, intra_op_threads, service_time_s;"):
        Machine.load(tmp_path / "some.npz")


def test_the_table_holds_the_grids_values_and_missing_knobs_count_as_one() -> None:
    machine = a_machine()
    table = machine.table(
        {"inter_op_threads": 2, "intra_op_threads": 4, "instances": 8, "max_batch_size": 16}
    )
    assert table.shape == (8, 16)
    grid = table[np.ix_([0, 1, 7], [0, 3, 15])]
    assert np.array_equal(grid, machine.service_time_s[1, 1])
    assert machine.table({}) == pytest.approx(machine.service_time_s[0, 0, 0, 0])
    assert not table.flags.writeable


def test_between_the_grids_values_power_laws_are_met_exactly() -> None:
    axes = [np.array([1, 4]), np.array([1, 2, 8]), np.array([1, 5]), np.array([1, 16])]
    i, a, n, b = np.meshgrid(*axes, indexing="ij")
    machine = Machine(*axes, 0.1 * i**-0.2 * a**-0.7 * n**0.5 * b**0.8)  # type: ignore[call-arg]
    table = machine.table(
        {"inter_op_threads": 3, "intra_op_threads": 5, "instances": 5, "max_batch_size": 16}
    )
    n_1, b_1 = np.arange(1, 6)[:, None], np.arange(1, 17)
    assert np.allclose(table, 0.1 * 3**-0.2 * 5**-0.7 * n_1**0.5 * b_1**0.8)


def test_outside_the_grid_the_edges_values_hold() -> None:
    machine = a_machine()
    beyond = machine.table(
        {"intra_op_threads": 9, "inter_op_threads": 9, "instances": 10, "max_batch_size": 20}
    )
    assert np.allclose(beyond[7:, 15:], machine.service_time_s[1, 1, 2, 2])


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        a_machine().table({"instances": 0})


def test_an_invented_machine_follows_its_formula() -> None:
    smooth = Machine.invent(5, roughness=0.0, work_s=0.2, batching_gain=0.25, cores=10)
    times_s = smooth.service_time_s
    assert times_s[0, 0, 0, 0] == pytest.approx(0.2)
    assert np.allclose(times_s[..., 3] / times_s[..., 0], 0.25 + 0.75 * 8)
    assert np.all(np.diff(times_s, axis=2) > 0)  # neighbours interfere
    assert np.all(np.diff(times_s[0, :, 0, 0]) < 0)  # threads help up to the cores
    assert np.all(np.diff(times_s[:, 9, 0, 0]) > 0)  # threads beyond the cores hurt
    rough = Machine.invent(5, roughness=0.15, work_s=0.2, batching_gain=0.25)
    field = np.log(rough.service_time_s / times_s) / 0.15
    assert 0.2 < field.std() < 3
    assert np.abs(np.diff(field, axis=2)).mean() < field.std()  # smooth


def test_machines_are_invented_by_seed() -> None:
    assert np.array_equal(Machine.invent(1).service_time_s, Machine.invent(1).service_time_s)
    assert not np.allclose(Machine.invent(1).service_time_s, Machine.invent(2).service_time_s)
    with pytest.raises(ValueError, match="batching_gain"):
        Machine.invent(1, batching_gain=1.0)
    with pytest.raises(ValueError, match="work_s"):
        Machine.invent(1, work_s=0.0)


def test_times_after_a_rest_survive_the_file_and_are_looked_up_as_the_others(tmp_path: Path) -> None:
    plain = Machine.invent(0, busy_instances=(1, 2, 4), batch_size=(1, 8))
    assert plain.rested_table({"instances": 2}) is None
    rested_s = 1.2 * plain.service_time_s[..., 0]
    replace(plain, rested_time_s=rested_s).save(tmp_path / "machine.npz")
    machine = Machine.load(tmp_path / "machine.npz")
    configuration = {"instances": 4, "intra_op_threads": 3, "max_batch_size": 8}
    found = machine.rested_table(configuration)
    assert found == pytest.approx(1.2 * machine.table(configuration)[:, 0])
    slower = machine.slower(2.0).rested_table(configuration)
    assert slower == pytest.approx(2.4 * machine.table(configuration)[:, 0])


@pytest.mark.parametrize(
    ("rested_s", "message"),
    [
        (np.ones((1, 1, 2)), r"rested_time_s must have shape \(1, 1, 1\)"),
        (np.zeros((1, 1, 1)), "must be a positive"),
    ],
)
def test_times_after_a_rest_that_are_none_are_refused(rested_s: np.ndarray, message: str) -> None:
    one = np.ones(1, int)
    with pytest.raises(ValueError, match=message):
        Machine(one, one, one, one, np.ones((1, 1, 1, 1)), rested_s)


def of_several_nodes(**changes: object) -> Machine:
    times_s = np.arange(1.0, 73.0).reshape(2, 2, 3, 3, 2)
    return a_machine(**({"service_time_s": times_s, "nodes_per_unit": [1, 4]} | changes))


def test_a_machine_of_several_nodes_is_looked_up_by_them(tmp_path: Path) -> None:
    of_several_nodes().save(tmp_path / "machine.npz")
    machine = Machine.load(tmp_path / "machine.npz")
    configuration = {"inter_op_threads": 2, "intra_op_threads": 4, "instances": 8, "max_batch_size": 16}
    for nodes, k in ((1, 0), (4, 1)):
        table = machine.table(configuration | {"nodes_per_unit": nodes})
        assert np.array_equal(table[np.ix_([0, 1, 7], [0, 3, 15])], machine.service_time_s[1, 1, ..., k])
        assert np.array_equal(table, machine.of_unit(nodes).table(configuration))
    one, two, four = (machine.table({"nodes_per_unit": nodes})[0, 0] for nodes in (1, 2, 4))
    assert two == pytest.approx(np.sqrt(one * four))
    assert np.array_equal(machine.table({}), machine.table({"nodes_per_unit": 1}))
    assert machine.largest("nodes_per_unit") == 4
    assert machine.slower(2.0).table({"nodes_per_unit": 4})[0, 0] == pytest.approx(2 * four)


def test_a_machine_of_one_node_has_no_unit_of_several() -> None:
    machine = a_machine()
    assert machine.largest("nodes_per_unit") == 1
    assert machine.of_unit(1) is machine
    with pytest.raises(ValueError, match="at least 1"):
        machine.table({"nodes_per_unit": 0})


def test_times_after_a_rest_are_of_so_many_nodes_too() -> None:
    machine = of_several_nodes()
    rested = replace(machine, rested_time_s=1.2 * machine.service_time_s[:, :, :, 0])
    configuration = {"instances": 2, "nodes_per_unit": 4}
    found = rested.rested_table(configuration)
    assert found == pytest.approx(1.2 * machine.table(configuration)[:, 0])
    assert rested.of_unit(4).rested_table({"instances": 2}) == pytest.approx(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service_time_s": np.ones((2, 2, 3, 3))}, "batch_size, nodes_per_unit, got"),
        ({"nodes_per_unit": [4, 1]}, "nodes_per_unit must ascend"),
        ({"nodes_per_unit": [0, 1]}, "nodes_per_unit must ascend"),
    ],
)
def test_a_wrong_axis_of_nodes_is_refused_in_one_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_several_nodes(**changes)
