"""A prior of many machines is a small file of plain arrays, and a hypothesis among others."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from rrl.belief.learned_prior import Kind, features, learned, load, save, shipped
from rrl.queueing.machine import Machine


def invented(seeds: range, cores: int = 4) -> list[tuple[Machine, int]]:
    return [
        (Machine.invent(s, cores=cores, intra_op_threads=range(1, 5), busy_instances=range(1, 5)), cores)
        for s in seeds
    ]


@pytest.fixture(scope="module")
def kind() -> Kind:
    return learned("small", invented(range(12)))


def test_what_was_saved_is_read_again(kind: Kind, tmp_path: Path) -> None:
    save([kind, kind._replace(name="other", cores=(2.0, 96.0))], tmp_path / "prior.npz")
    read, other = load(tmp_path / "prior.npz")
    assert (read.name, read.cores) == ("small", (4.0, 4.0))
    assert (other.name, other.cores) == ("other", (2.0, 96.0))
    np.testing.assert_allclose(read.mean, kind.mean, rtol=1e-6)
    np.testing.assert_allclose(read.factor, kind.factor, rtol=1e-6, atol=1e-9)
    assert read.field_sd == pytest.approx(kind.field_sd)


def test_a_file_has_a_few_kb(kind: Kind, tmp_path: Path) -> None:
    kinds = [kind._replace(name=f"kind {k}") for k in range(4)]
    save(kinds, tmp_path / "prior.npz")
    assert (tmp_path / "prior.npz").stat().st_size < 8192


@pytest.mark.parametrize("content", ["missing", "text", "cut off", "pickle", "objects", "of another length"])
def test_a_bad_file_gets_one_sentence(kind: Kind, tmp_path: Path, content: str) -> None:
    path = tmp_path / "prior.npz"
    save([kind], path)
    if content == "missing":
        path.unlink()
    elif content == "text":
        path.write_text("no prior")
    elif content == "cut off":
        path.write_bytes(path.read_bytes()[:200])
    elif content == "pickle":
        path.write_bytes(pickle.dumps({"small": kind.mean}))
    elif content == "objects":
        np.savez(path, small=np.array([Path("x"), None], dtype=object))
    else:
        np.savez(path, small=np.ones(7, np.float32))
    with pytest.raises(ValueError, match=r"^cannot read the prior .*: expected .* rrl-train --prior wrote$"):
        load(path)


def test_machines_of_the_kind_are_expected_better_than_by_their_mean(kind: Kind) -> None:
    """Those that it was not learned of, too."""
    for machine, cores in invented(range(500, 505)):
        axes = (
            machine.inter_op_threads,
            machine.intra_op_threads,
            machine.busy_instances,
            machine.batch_size,
        )
        i, a, n, b = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        points = np.stack([i, a, n, n, b], axis=1).astype(float)
        log_times = np.log(machine.service_time_s).ravel()
        error = log_times - log_times.mean() - features(points, cores) @ kind.mean
        assert np.std(error) < 0.5 * np.std(log_times)


def test_the_prior_of_the_package_says_of_how_many_cores_it_speaks() -> None:
    assert shipped()
    for kind in shipped():
        fewest, most = kind.cores
        assert 1 <= fewest <= most
