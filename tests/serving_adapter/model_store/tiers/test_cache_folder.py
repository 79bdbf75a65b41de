"""A store keeps its cache where nothing of anybody else's is, and says so where something is."""

from __future__ import annotations

import pytest

from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.tiers.cache_folder import MARK, claim
from tests.support.stores.running_store import rrl_store, short_folder

OF_A_STORE = ["lock", f"blobs/{'ab' * 32}", f"blobs/.x.{'0' * 16}.part", "models/safetensors/a%2Fb@1.json"]


def fill(folder, names) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("names", [[], OF_A_STORE], ids=["empty", "of a store"])
def test_a_folder_with_nothing_but_a_stores_files_is_marked(tmp_path, names):
    fill(tmp_path, names)
    claim(tmp_path)
    assert files(tmp_path) == {*names, MARK}


def test_a_folder_that_is_not_there_is_made_for_this_user_alone(tmp_path):
    claim(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700
    assert files(tmp_path) == {f"new/cache/{MARK}"}


def test_a_marked_folder_is_taken_whatever_lies_there(tmp_path):
    claim(tmp_path)
    fill(tmp_path, ["notes.txt"])
    claim(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "blobs/sha256-weights",
        f"blobs/sha256/{'ab' * 32}",
        "downloads/film.mkv.part",
        "models/llama/config.json",
        "models/README.md",
        "notes.txt",
        ".git/HEAD",
    ],
)
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path, name):
    fill(tmp_path, [*OF_A_STORE, name])
    with pytest.raises(StoreError, match=r"holds files that no store wrote, such as .*give --cache an empty"):
        claim(tmp_path)
    assert files(tmp_path) == {*OF_A_STORE, name}
    assert (tmp_path / "lock").read_text() == "lock"


def test_the_command_says_so_and_deletes_nothing(tmp_path):
    names = ["blobs/sha256-weights", "downloads/film.mkv.part", "lock"]
    fill(tmp_path, names)
    with short_folder() as folder:
        refused = rrl_store("serve", "--folder", folder, "--cache", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "holds files that no store wrote" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert {name: (tmp_path / name).read_text() for name in names} == {name: name for name in names}
