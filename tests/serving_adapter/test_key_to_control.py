"""Where a program takes the key to control a server from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from envs.profile_options import ProfileOptions
from rrl.command_line.options.options import TuneOptions
from serving_adapter.control_key import KEY_VARIABLE, read_control_key
from serving_adapter.server.options import ServeOptions


def test_a_file_counts_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_control_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, "of the environment")
    assert read_control_key(None) == "of the environment"
    file = tmp_path / "key"
    file.write_text("of the file\n")
    file.chmod(0o600)
    assert read_control_key(file) == "of the file"
    with pytest.raises(ValueError, match=f"cannot read --control-key-file {tmp_path}: Is a directory$"):
        read_control_key(tmp_path)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=f"cannot read --control-key-file {file}: it is not UTF-8 text$"):
        read_control_key(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match=f"--control-key-file {file} is empty"):
        read_control_key(file)
    monkeypatch.setenv(KEY_VARIABLE, "")
    with pytest.raises(ValueError, match=f"{KEY_VARIABLE} is empty"):
        read_control_key(None)


@pytest.mark.parametrize("options", [TuneOptions, ProfileOptions, ServeOptions])
def test_no_program_takes_a_key_as_an_argument(options: type) -> None:
    hints = get_type_hints(options)
    keys = [field.name for field in dataclasses.fields(options) if "key" in field.name]
    assert "control_key_file" in keys
    assert {get_args(hints[name]) for name in keys} == {(Path, type(None))}
