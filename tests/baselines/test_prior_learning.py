"""`rrl-train --prior`: the kinds that it learns, and the file of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baselines import prior_learning
from baselines.training import main
from rrl.belief.learned_prior import Kind, features, load, shipped
from rrl.queueing.machine import Machine

KINDS = ["family", "invented", "small"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2, 3):
        Machine.invent(seed, busy_instances=(1, 2, 4), intra_op_threads=(1, 2, 8)).save(f"{seed}.npz")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only three machines of each generated kind, so that a test takes no minutes."""
    everything = prior_learning.generated
    monkeypatch.setattr(prior_learning, "generated", lambda: everything(3))


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def expect_usable(kinds: tuple[Kind, ...]) -> None:
    points = np.array([[1.0, 2.0, 2.0, 1.0, 4.0]])
    for kind in kinds:
        assert 0 < kind.field_sd < 1
        assert np.isfinite(kind.factor).all()
        assert np.isfinite(features(points, 4.0) @ kind.mean).all()
        assert (np.diag(kind.factor) > 0).all()


def test_the_prior_that_comes_with_the_package_has_the_generated_kinds() -> None:
    assert [kind.name for kind in shipped()] == KINDS
    expect_usable(shipped())


@pytest.mark.usefixtures("few")
def test_a_prior_is_learned_and_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--prior", "prior[bold].npz"])
    kinds = load("prior[bold].npz")
    assert [kind.name for kind in kinds] == KINDS
    expect_usable(kinds)
    told = capsys.readouterr().out
    assert all(name in told for name in (*KINDS, "prior[bold].npz"))
    assert f"{kinds[0].field_sd:.1%}" in told


@pytest.mark.usefixtures("few")
def test_machine_files_are_a_kind_of_their_own() -> None:
    main(["--prior", "prior.npz", "--machines", "1.npz,2.npz,3.npz"])
    *_, measured = load("prior.npz")
    assert measured.name == "measured"
    expect_usable((measured,))


@pytest.mark.parametrize(
    ("given", "known"),
    [((), [8, 8, 8]), ((4,), [4, 4, 4]), ((4, 2, 6), [4, 2, 6])],
    ids=["none", "one", "all"],
)
def test_measured_machines_have_the_cores_given_or_the_most_threads_of_their_tables(
    given: tuple[int, ...], known: list[int]
) -> None:
    found = prior_learning.measured(["1.npz", "2.npz", "3.npz"], given)
    assert [cores for _, cores in found] == known


def test_no_machine_that_judges_is_learned_from() -> None:
    """Nor one of those that settings are chosen on first: family seeds 0 .. 99."""
    assert min(prior_learning.FAMILY_SEEDS) >= 100
    assert max(prior_learning.FAMILY_SEEDS) < 1000


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either --machine, to train an agent on it, or --prior FILE"),
        (["--prior", "p.npz", "--machine", "1.npz"], "give either --machine"),
        (["--prior", "p.npz", "--machines", "1.npz"], "--machines needs two files or more"),
        (["--prior", "p.npz", "--machines", "1.npz,0.npz"], "there is no machine file '0.npz'"),
        (["--prior", "p.npz", "--machines", "1.npz,2.npz,3.npz", "--cores", "1", "2"], "--cores must be one"),
        (["--prior", "p.npz", "--cores", "4"], "--cores are those of --machines"),
        (["--prior", "p.npz", "--machines", "1.npz,2.npz", "--cores", "0"], "--cores must be at least 1"),
        (["--machine", "1.npz", "--machines", "1.npz,2.npz"], "go with --prior FILE"),
        (["--prior", "nowhere/p.npz"], "cannot read or write nowhere/p.npz"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said
    assert not Path("p.npz").exists()


def test_a_place_that_cannot_be_written_is_told_before_anything_is_learned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prior_learning, "generated", pytest.fail)
    with pytest.raises(SystemExit):
        main(["--prior", "/proc/prior.npz"])
    assert "cannot read or write /proc/prior.npz" in capsys.readouterr().err
