"""A process of ours runs our modules and Python's, whatever lies in the current directory."""

from __future__ import annotations

import subprocess

import psutil

from serving_adapter import own_process


def test_a_file_in_the_current_directory_is_not_taken_for_one_of_pythons_own(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('somebody elses code runs')")
    command = own_process.command("serving_adapter.load.command_line", "--help")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_a_process_whose_parent_is_gone_ends_at_once():
    nobody = max(psutil.pids()) + 1_000_000
    command = own_process.command(own_process.__name__, str(nobody), "this")
    assert subprocess.run(command, timeout=60).returncode != 0
