"""`rrl-export`: the journal of a real run as a data set that Minari loads."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.offline_data import FROM_BEFORE, arrays, episodes_of, main
from envs.serving import action_space_of, observation_space_of
from rrl.journal import FILE_NAME, read
from rrl.records import Record
from tests.support import CHECKOUT

TRITON = CHECKOUT / "tests" / "recorded" / "triton"
LOAD = """
import json, sys
import minari, numpy as np

dataset = minari.load_dataset(sys.argv[1])
steps = [
    (float(reward), bool(truncated))
    for episode in dataset.iterate_episodes()
    for reward, truncated in zip(episode.rewards, episode.truncations)
]
assert all(
    dataset.observation_space.contains(o) and dataset.action_space.contains(a)
    for episode in dataset.iterate_episodes()
    for o, a in zip(episode.observations, episode.actions)
)
print(json.dumps({
    "episodes": dataset.total_episodes,
    "steps": steps,
    "knobs": json.loads(dataset.storage.metadata["knobs"]),
    "kinds": [str(kind, "utf-8") for kind in next(dataset.iterate_episodes()).infos["kind"]],
}))
"""


def test_an_episode_is_what_followed_upon_another() -> None:
    header, records = read(TRITON)
    episodes = list(episodes_of(records))
    assert [record for episode in episodes for record in episode] == records
    for episode in episodes:
        made = arrays(episode)
        observations, actions = made["observations"], made["actions"]
        assert observations.shape == (len(episode) + 1, *observation_space_of(header.space).shape)
        assert all(action_space_of(header.space).contains(action) for action in actions)
        assert all(observation_space_of(header.space).contains(each) for each in observations)
        for step, record in enumerate(episode):
            t = record.transition
            assert np.array_equal(observations[step], t.observation)
            assert np.array_equal(observations[step + 1], t.next_observation)
            assert made["rewards"][step] == -t.cost
            assert made["infos"]["kind"][step + 1] == record.kind
        assert made["truncations"].tolist() == [False] * (len(episode) - 1) + [True]
        assert {len(values) for values in made["infos"].values()} == {len(episode) + 1}


def test_a_run_that_was_broken_off_is_two_episodes() -> None:
    _, records = read(TRITON)
    assert len(list(episodes_of([records[0], records[-1]]))) == 2
    assert list(episodes_of([])) == []


@pytest.mark.parametrize(
    "without_cost",
    [
        lambda record: with_gap(replace(record, not_taken=True)),
        lambda record: with_gap(replace(record, left_to_others=True)),
        lambda record: replace(record, left_to_others=True),
        lambda record: replace(record, transition=replace(record.transition, cost=math.nan)),
    ],
)
def test_what_has_no_cost_of_what_was_in_force_is_no_step(without_cost: Callable[[Record], Record]) -> None:
    _, records = read(TRITON)
    whole = next(episode for episode in episodes_of(records) if len(episode) > 2)
    before, middle, *after = whole
    assert list(episodes_of([before, without_cost(middle), *after])) == [[before], after]
    unmoved = replace(after[0].transition, observation=before.transition.next_observation)
    after[0] = replace(after[0], transition=unmoved)
    assert list(episodes_of([before, without_cost(middle), *after])) == [[before], after]
    assert list(episodes_of([without_cost(middle)])) == []


def with_gap(record: Record) -> Record:
    measurement = replace(record.measurement, gap="the target was away")
    return replace(record, transition=replace(record.transition, measurement=measurement))


def test_minari_loads_what_was_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minari")
    header, records = read(TRITON)
    command = ["--dataset", "rrl/triton-minilm-v0", "--run", str(TRITON), "--into", tmp_path.name]
    exported = [sys.executable, "-m", "envs.offline_data", *command]
    said = subprocess.run(exported, capture_output=True, text=True, check=True, cwd=tmp_path.parent)
    assert said.stdout.startswith(f"rrl/triton-minilm-v0: {len(records)} steps in ")
    loaded = subprocess.check_output(
        [sys.executable, "-c", LOAD, "rrl/triton-minilm-v0"],
        env=os.environ | {"MINARI_DATASETS_PATH": str(tmp_path)},
        text=True,
    )
    found = json.loads(loaded)
    episodes = list(episodes_of(records))
    assert found["episodes"] == len(episodes)
    assert [reward for reward, _ in found["steps"]] == pytest.approx(
        [-record.transition.cost for record in records]
    )
    assert found["knobs"] == header.space.to_json()
    assert found["kinds"] == [FROM_BEFORE["kind"], *(record.kind for record in episodes[0])]
    again = subprocess.run(exported, capture_output=True, text=True, check=False, cwd=tmp_path.parent)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("error", "ended_by"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SystemExit),
        (RuntimeError("file write failed"), SystemExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_data_set_that_is_not_whole_is_taken_away_and_can_be_exported_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    ended_by: type[BaseException],
) -> None:
    storage = pytest.importorskip("minari.dataset.minari_storage").MinariStorage
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    arguments = ["--dataset", "rrl/triton-v0", "--run", str(TRITON), "--into", str(tmp_path)]

    def broken_off(*given: object) -> None:
        raise error

    with monkeypatch.context() as full:
        for each in (storage, *storage.__subclasses__()):
            full.setattr(each, "update_metadata", broken_off)
        with pytest.raises(ended_by):
            main(arguments)
    if ended_by is SystemExit:
        said = capsys.readouterr().err
        assert f"the data set cannot be written to {tmp_path / 'rrl/triton-v0'}: " in said
        assert "; make room there" in said
    assert not (tmp_path / "rrl" / "triton-v0").exists()
    main(arguments)


def other_run(folder: Path, **header: object) -> Path:
    """The recorded run, with another header."""
    folder.mkdir()
    shutil.copy(TRITON / FILE_NAME, folder)
    first, *rest = (folder / FILE_NAME).read_text(encoding="utf-8").splitlines()
    lines = [json.dumps(json.loads(first) | header), *rest]
    (folder / FILE_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_runs_that_do_not_belong_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_run(tmp_path / "other", objective="strict-slo", slo_p95_ms=50.0)
    for arguments, words in (
        (["--run", TRITON, "--run", other], "is a run of another objective, strict-slo, not latency"),
        (["--run", TRITON / "journal.jsonl", "--run", other], "is a run of another objective, strict-slo"),
        (["--run", tmp_path], "no journal at"),
        ([], "give the folder of a run with --run"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--dataset", "rrl/x-v0", "--into", str(tmp_path / "into")])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("name", ["triton", "rrl/triton", "rrl/triton-v", "tri ton-v0", "/x-v0", "../x-v0"])
def test_a_name_that_minari_does_not_take_is_refused_in_a_sentence(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--run", str(TRITON), "--dataset", name])
    assert ended.value.code == 2
    assert f"--dataset must be NAME-vN or NAMESPACE/NAME-vN, as in rrl/triton-v0, got '{name}'" in (
        capsys.readouterr().err
    )
