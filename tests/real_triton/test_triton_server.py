"""Installing Triton, starting and ending it, and the command that does both for a user."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.triton_server.installation import CHECKOUT, install
from scripts.triton_server.repository import TENSORS, ModelSpec, write_repository
from scripts.triton_server.running import running


def test_what_is_installed_is_not_installed_again(installation):
    said: list[str] = []
    assert install(installation.folder, say=said.append) == installation
    assert said == []


def test_without_a_package_index_one_sentence_says_so_and_nothing_counts_as_installed(tmp_path, monkeypatch):
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": "", "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"pip cannot install nvidia-pytriton\S* for Triton \("
        ) as caught:
            install(tmp_path / "triton", say=lambda text: None)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("libc", [("glibc", "2.31"), ("", "")])
def test_an_old_system_is_told_before_anything_is_downloaded(libc, tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    with pytest.raises(RuntimeError, match=r"Triton needs Linux with glibc 2\.35 or later, and this is"):
        install(tmp_path / "triton")
    assert not (tmp_path / "triton").exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match=r"cannot install Triton in .*file/triton: .*; name another"):
        install(tmp_path / "file" / "triton")


@pytest.mark.parametrize(
    ("options", "flags", "says"),
    [
        ({"msx": 1}, (), "failed to load 'm' version 1: .* unexpected keyword argument 'msx'"),
        ({}, ("--nonsense=1",), "unrecognized option '--nonsense=1'"),
        ({}, ("--load-model=n",), "failed to load all models"),
    ],
)
def test_a_server_that_does_not_start_is_told_in_one_sentence(tmp_path, installation, options, flags, says):
    repository = write_repository(tmp_path, {"m": ModelSpec("noop", options)})
    with (
        pytest.raises(RuntimeError, match=f"Triton did not start: .*{says}") as caught,
        running(repository, *flags, installation=installation),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_port_in_use_is_told(triton, repository, installation):
    port = int(triton.address.rpartition(":")[2])
    with (
        pytest.raises(RuntimeError, match=rf"cannot listen on 127\.0\.0\.1:{port} .*; name another port"),
        running(repository, grpc_port=port, installation=installation),
    ):
        pass


def test_no_process_and_no_shared_memory_outlives_a_server(light_repository, installation):
    before = shared_memory()
    with running(light_repository, installation=installation) as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert children
        server.process.kill()  # it cannot end its models' processes itself any more
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert shared_memory() <= before


def shared_memory():
    return {path.name for path in Path("/dev/shm").glob(f"rrl_triton_{os.getpid()}_*")}


def test_unknown_models_are_told():
    with pytest.raises(ValueError, match=f"unknown model 'bert'; Triton can be given {', '.join(TENSORS)}"):
        ModelSpec("bert").config("bert")


@pytest.fixture
def started():
    """The command as a process, killed after the test."""
    processes = []

    def start(*arguments):
        command = [sys.executable, "-m", "scripts.triton_server", *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
        process.communicate()


def test_the_command_serves_until_it_is_interrupted(installation, started):
    ports = ("--port", "0", "--http-port", "0", "--metrics-port", "0")
    models = ("--models", "noop", "sleep", "--instances", "2", "--folder", str(installation.folder))
    process = started(*models, *ports)
    told = [process.stdout.readline() for _ in range(3)]
    assert told[0].startswith("Triton serves gRPC on 127.0.0.1:")
    address = told[0].split()[4].rstrip(",")
    assert told[2].split()[:3] == ["rrl-tune", "--target", address]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--models", "bert"), "--models must be one or more of minilm, "),
        (("--instances", "0"), "instances must be from 1 to 64, got 0"),
        (("--port", "70000"), "--port must be from 0 to 65535, got 70000"),
    ],
)
def test_wrong_use_of_the_command_is_one_sentence(arguments, says, capsys):
    from scripts.triton_server.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main([*arguments])
    told = capsys.readouterr().err.strip()
    assert says in told
    assert len(told.splitlines()) == 1
