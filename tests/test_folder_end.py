"""What runs for the tests of one folder ends when the next test is elsewhere."""

from __future__ import annotations

from pathlib import Path

from tests.support.folder_end import end_other_folders, until_folder_ends


def test_it_ends_once_when_the_next_test_is_in_another_folder(tmp_path: Path) -> None:
    here, ends = tmp_path / "here", list[str]()
    with until_folder_ends(here) as stack:
        stack.callback(ends.append, "ended")
        end_other_folders(here / "test_more.py")
        end_other_folders(here / "below" / "test_more.py")
        assert ends == []
        end_other_folders(tmp_path / "test_elsewhere.py")
        end_other_folders(tmp_path / "there" / "test_elsewhere.py")
        assert ends == ["ended"]
    assert ends == ["ended"]


def test_it_ends_with_its_fixture_where_no_test_follows(tmp_path: Path) -> None:
    ends = list[str]()
    with until_folder_ends(tmp_path) as stack:
        stack.callback(ends.append, "ended")
    assert ends == ["ended"]
