"""`rrl-store`: what it prints, and exit codes: 2 for wrong use or no store, 1 for a refusal."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
import yaml

from serving_adapter.model_store import Client, command_line
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support import CHECKOUT
from tests.support.stores.running_store import Seen, rrl_store, short_folder, stores
from tests.support.stores.weights_files import in_repository, saved, some_weights
from tests.support.waiting import until


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    for name, version in (("bert", "1"), ("bert", "2"), ("family/small", "7")):
        in_repository(root, name, version, some_weights(seed=int(version)))
    with stores(tmp_path_factory.mktemp("store")) as start:
        yield start("--remote", f"file://{root}", "--host-bytes", "8M")


def row_of(output: str, *words: str) -> str:
    (row,) = (line for line in output.splitlines() if all(word in line for word in words))
    return row


def asked(store, *arguments: str):
    return rrl_store(*arguments, "--folder", store.folder)


def says_one_sentence(ended, code: int, sentence: str) -> None:
    assert ended.returncode == code, ended.stderr
    assert sentence in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert ended.stdout == ""


def test_a_pinned_model_stays_until_it_is_released(running):
    assert asked(running, "pin", "bert", "--version", "1").returncode == 0
    listed = asked(running, "ls")
    assert listed.returncode == 0
    assert listed.stderr == ""
    row = row_of(listed.stdout, "bert", " 1 ")
    assert "host" in row
    assert "yes" in row
    says_one_sentence(asked(running, "evict", "bert", "--version", "1"), 1, "in use or pinned")
    assert asked(running, "pin", "bert", "--version", "1", "--release").returncode == 0
    assert "yes" not in row_of(asked(running, "ls").stdout, "bert", " 1 ")
    until(lambda: asked(running, "evict", "bert", "--version", "1").returncode == 0)
    assert "bert" not in asked(running, "ls").stdout


def test_pin_takes_the_newest_version_where_none_is_named(running):
    assert asked(running, "pin", "bert").returncode == 0
    assert row_of(asked(running, "ls").stdout, "bert", " 2 ")
    assert asked(running, "pin", "bert", "--release").returncode == 0


def test_a_model_is_evicted_from_the_named_tier_only(running):
    assert asked(running, "pin", "family/small").returncode == 0
    until(lambda: "disk" in row_of(asked(running, "ls").stdout, "family/small"))
    assert asked(running, "pin", "family/small", "--release").returncode == 0
    assert asked(running, "evict", "family/small", "--tier", "host").returncode == 0
    row = row_of(asked(running, "ls").stdout, "family/small")
    assert "disk" in row
    assert "host" not in row
    says_one_sentence(
        asked(running, "evict", "family/small", "--tier", "gpu"),
        1,
        "there is no tier 'gpu'; there are host, disk",
    )
    assert asked(running, "evict", "family/small").returncode == 0
    assert "family/small" not in asked(running, "ls").stdout


def test_references_and_opens_are_listed(running):
    with running.client() as client:
        held = [client.open("bert", "2") for _ in range(3)]
        row = row_of(asked(running, "ls").stdout, "bert", " 2 ")
        assert [cell.strip() for cell in row.split("│")][5] == "3"
        says_one_sentence(
            asked(running, "evict", "bert", "--version", "2"), 1, "safetensors/bert/2 is in use"
        )
        del held


def test_stats_shows_every_tier(running):
    with running.client() as client:
        client.open("bert", "2")
    shown = asked(running, "stats")
    assert shown.returncode == 0
    assert shown.stderr == ""
    for tier in ("host", "disk", "remote"):
        assert row_of(shown.stdout, f"│ {tier} ")
    assert "8,388,608" in row_of(shown.stdout, "│ host ")
    assert "references of" in shown.stdout


@pytest.mark.parametrize("command", [("ls",), ("stats",), ("pin", "x"), ("evict", "x")])
def test_no_store_is_wrong_use(command):
    with short_folder() as folder:
        says_one_sentence(
            rrl_store(*command, "--folder", folder), 2, f"no model store runs at {folder}; start one with"
        )
        says_one_sentence(rrl_store(*command, "--folder", folder / "none"), 2, "no model store runs at")


@pytest.mark.parametrize("command", [("ls",), ("stats",), ("pin", "x"), ("evict", "x"), ("serve",)])
def test_a_folder_that_cannot_be_one_is_said_so(command, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below", tmp_path / ("x" * 120)):
        ended = rrl_store(*command, "--folder", folder)
        assert ended.returncode in (1, 2)
        assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


@pytest.mark.parametrize("command", [("pin", "nope"), ("pin", "bert", "--version", "9"), ("evict", "nope")])
def test_an_unknown_model_is_refused(running, command):
    says_one_sentence(asked(running, *command), 1, command[1])


WRONG_USE = [
    ((), "usage: rrl-store COMMAND"),
    (("list",), "usage: rrl-store COMMAND"),
    (("serve", "--host-bytes", "lots"), "--host-bytes must be a size like 500M, 8G or 50%, got 'lots'"),
    (("serve", "--host-bytes", "-5"), "--host-bytes must be a size"),
    (("serve", "--client-quota", "1X"), "--client-quota must be a size"),
    (("serve", "--max-clients", "0"), "--max-clients must be from 1 to 100,000, got 0"),
    (("serve", "--idle-exit-s", "0"), "--idle-exit-s must be more than 0, got 0"),
    (("serve", "--idle-exit-s", "nan"), "--idle-exit-s must be more than 0, got nan"),
    (("serve", "--token-file", os.devnull), "--token-file /dev/null is empty"),
    (("serve", "--token-file", "/none"), "cannot read --token-file /none"),
    (("serve", "--detach", "--token-file", "/none"), "cannot read --token-file /none"),
    (("serve", "--cache", os.devnull), os.devnull),
    (("serve", "--detach", "--cache", os.devnull), os.devnull),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_USE)
def test_wrong_use_is_said_in_one_sentence(arguments, sentence):
    with short_folder() as folder:
        ended = rrl_store(*arguments, RRL_STORE=str(folder))
    says_one_sentence(ended, 2, sentence)


def test_wrong_flags_are_wrong_use(running):
    for arguments in (
        ("ls", "--nope"),
        ("pin",),
        ("evict", "x", "--tier", "tape"),
        ("serve", "--policy", "x"),
    ):
        ended = asked(running, *arguments)
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr


def test_behind_two_hyphens_every_command_but_run_takes_names_and_no_flags():
    with short_folder() as folder:
        for arguments in (("evict", "bert", "--", "--tier", "disk"), ("ls", "--", "--tier", "disk")):
            ended = rrl_store(*arguments, RRL_STORE=str(folder))
            says_one_sentence(ended, 2, "--tier stands behind --, where no flags are read")
        named = rrl_store("evict", "--tier", "disk", "--", "-bert", RRL_STORE=str(folder))
    says_one_sentence(named, 2, "no model store runs at")


def test_help_lists_every_command():
    shown = rrl_store("--help")
    assert shown.returncode == 0
    for command in ("serve", "ls", "pin", "evict", "stats"):
        assert f"  {command} " in shown.stdout
        assert rrl_store(command, "--help").returncode == 0


def test_a_second_store_of_one_folder_is_refused(running, tmp_path):
    says_one_sentence(rrl_store("serve", "--folder", running.folder, "--cache", tmp_path), 1, "serves")
    assert asked(running, "stats").returncode == 0


def test_a_gpu_tier_without_cuda_is_refused(tmp_path):
    with short_folder() as folder:
        ended = rrl_store(
            "serve", "--gpu-bytes", "1G", "--folder", folder, "--cache", tmp_path, CUDA_VISIBLE_DEVICES=""
        )
    says_one_sentence(ended, 1, "there can be no GPU tier")


def test_a_token_is_asked_for(tmp_path):
    (tmp_path / "token").write_text("open sesame\n")
    with stores(tmp_path) as start:
        store = start("--token-file", tmp_path / "token")
        for wrong in ({}, {"RRL_STORE_TOKEN": "open barley"}):
            says_one_sentence(
                rrl_store("ls", "--folder", store.folder, **wrong),
                1,
                "wants another token; set RRL_STORE_TOKEN",
            )
        right = {"RRL_STORE_TOKEN": "open sesame"}
        assert rrl_store("ls", "--folder", store.folder, **right).returncode == 0


def test_a_share_of_the_disk_is_one_of_the_caches_file_system(tmp_path):
    memory = Path("/dev/shm")
    if not os.path.ismount(memory):
        pytest.skip("there is one file system only")
    with TemporaryDirectory(dir=memory) as folder, stores(tmp_path) as start:
        store = start("--cache", Path(folder) / "not" / "yet", "--disk-bytes", "50%")
        with store.client() as client:
            assert Seen(client).tier("disk").capacity_bytes == psutil.disk_usage("/dev/shm").total // 2
        store.stop()


def test_a_detached_store_stays_after_its_command(tmp_path):
    with short_folder() as folder:
        flags = ("--folder", folder, "--cache", tmp_path / "cache", "--host-bytes", "64M")
        assert rrl_store("serve", "--detach", *flags).returncode == 0
        with Client(Endpoint(folder), starts_store=False) as client:
            process = psutil.Process(client.call("Stats", pb.Empty()).pid)
        try:
            says_one_sentence(rrl_store("serve", "--detach", *flags), 2, "serves")
            assert process.terminal() is None
        finally:
            process.send_signal(signal.SIGTERM)
        psutil.wait_procs([process], timeout=10)
        assert not process.is_running()
        assert not (folder / "rpc.sock").exists()
        assert not (folder / "descriptors.sock").exists()


def test_sigterm_ends_a_store_cleanly(tmp_path):
    with stores(tmp_path) as start:
        store = start()
        with store.client() as client, saved(some_weights(), tmp_path / "w").open("rb") as file:
            held = client.open_file(file, "w")
            assert store.stop() == 0
            assert held.memory is not None
        assert bytes(held.memory.buffer[:1])  # what is mapped stays
        assert sorted(os.listdir(store.folder)) == ["lock", "options.yaml", "sharing_costs.json"]


def test_a_store_told_to_stop_again_and_again_ends_at_once_and_another_takes_its_place(tmp_path):
    with stores(tmp_path) as start:
        store = start()
        while store.process.poll() is None:
            store.process.send_signal(signal.SIGTERM)
        assert store.process.returncode in (0, -signal.SIGTERM)
        flags = ("--folder", store.folder, "--cache", tmp_path / "another", "--host-bytes", "64M")
        assert rrl_store("serve", "--detach", *flags).returncode == 0
        with Client(Endpoint(store.folder), starts_store=False) as client:
            process = psutil.Process(client.call("Stats", pb.Empty()).pid)
        process.terminate()
        psutil.wait_procs([process], timeout=10)


def test_whoever_reads_how_a_store_was_set_up_reads_all_of_it(tmp_path):
    endpoint, options = Endpoint(tmp_path), command_line.StoreServeOptions(cache=tmp_path / "cache")
    settings = command_line._settings(options)
    command_line._write_options(options, settings, endpoint)
    assert endpoint.options.stat().st_mode & 0o777 == 0o600
    with endpoint.options.open() as reader:  # by now; then it goes on
        with_token = replace(settings, token="secret")
        command_line._write_options(options, with_token, endpoint)
        assert yaml.safe_load(reader)["wants_token"] is False
    text = endpoint.options.read_text()
    assert yaml.safe_load(text)["wants_token"] is True
    assert "secret" not in text
    assert [path.name for path in tmp_path.iterdir()] == [endpoint.options.name]


def test_a_user_without_a_home_is_told_where_to_keep_the_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_007)
    with pytest.raises(SystemExit):
        command_line._cache(command_line.StoreServeOptions(folder=tmp_path))
    assert "this user has no home to keep the cache in; give --cache FOLDER" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line._cache(command_line.StoreServeOptions(folder=tmp_path, cache=Path("~/cache")))


def test_the_store_switched_off_is_not_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (("ls",), ("stats",)):
        ended = rrl_store(*command, RRL_STORE="off", PYTHONPATH=str(CHECKOUT))
        assert ended.returncode == 2
        assert len(ended.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "off").exists()


def test_the_seen_counters_agree_with_the_page(running):
    with running.client() as client:
        seen = Seen(client).tier("host")
    row = [
        cell.strip().replace(",", "") for cell in row_of(asked(running, "stats").stdout, "│ host ").split("│")
    ]
    assert [cell.strip() for cell in row[2:7]] == [
        str(value) for value in (seen.used_bytes, seen.capacity_bytes, seen.hits, seen.misses, seen.evictions)
    ]
