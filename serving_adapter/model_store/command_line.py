"""`rrl-store`: the model store's daemon, and what an operator asks of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psutil
import yaml
from tyro.conf import UseAppendAction

from serving_adapter.flags.parsing import Command, fail, in_a_sentence, parse_command
from serving_adapter.model_store import questions
from serving_adapter.model_store.endpoint import TOKEN_VARIABLE, Endpoint, endpoint_in
from serving_adapter.model_store.errors import StoreError, StoreUnavailable
from serving_adapter.model_store.settings import StoreSettings
from serving_adapter.model_store.unchanged_programs.run_program import RunOptions, run_program, split
from serving_adapter.resources import memory_bytes
from serving_adapter.secret_file import read_secret
from serving_adapter.standard_streams import keep_standard_streams, log_to_standard_error
from serving_adapter.whole_files import written_whole

FAILED = 1
FOR_THIS_USER = 0o600
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?|(\d+(?:\.\d+)?)%", re.IGNORECASE)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class StoreServeOptions:
    """Runs the model store: one copy of the weights for every process of this machine."""

    remote: UseAppendAction[tuple[str, ...]] = ()
    """URL of a model repository (file://, s3://, https://, memory://), below which models are
    NAME/VERSION/model.safetensors; again for more, asked in turn."""
    host_bytes: str = "50%"
    """Host memory for weights: bytes, with K, M, G or T, or a share of the memory like 50%."""
    disk_bytes: str = "50G"
    """Disk for the cache of remote models, in bytes or as a share of the cache's file system."""
    gpu_bytes: str = "0"
    """Memory for weights on each GPU that CUDA shows (CUDA_VISIBLE_DEVICES says which); 0 is no GPU tier."""
    cache: Path | None = None
    """Folder of the disk tier: empty, or this store's own (default: one in ~/.cache/rrl-store)."""
    policy: Literal["reload-cost", "lru", "lcu"] = "reload-cost"
    """Whom to evict from a full tier: what is cheapest to load again for its bytes, the least recently used,
    or the least commonly used."""
    granularity: Literal["auto", "tensor", "model"] = "auto"
    """What is shared: each tensor for itself, whole models only, or (auto) each tensor of 2 MB or more for
    itself and smaller ones in groups."""
    eager_reclaim: bool = False
    """Evicts a model as soon as nobody refers to it."""
    client_quota: str = "80%"
    """Host memory that one process may refer to, in bytes or as a share of --host-bytes."""
    max_clients: int = 4096
    """Connections at most."""
    token_file: Path | None = None
    """File with a token that clients then need (or set RRL_STORE_TOKEN)."""
    wants_token: bool = False
    """Refuses to start without a token, as a store that takes the place of one that had one must."""
    group_access: bool = False
    """Lets the folder's group connect; the default is this user only."""
    folder: Path | None = None
    """Where the sockets are (default: $RRL_STORE, or a folder of this user)."""
    idle_exit_s: float | None = None
    """Ends when nobody has been connected for that long; the default is to stay."""
    detach: bool = False
    """Returns once the store listens, and leaves it running."""

    def __post_init__(self) -> None:
        for flag in ("host_bytes", "disk_bytes", "gpu_bytes", "client_quota"):
            parse_size(getattr(self, flag), whole=100, flag=f"--{flag.replace('_', '-')}")
        if "%" in self.gpu_bytes:
            raise ValueError(f"--gpu-bytes must be a size like 8G, got {self.gpu_bytes!r}")
        if not 1 <= self.max_clients <= 100_000:
            raise ValueError(f"--max-clients must be from 1 to 100,000, got {self.max_clients:,}")
        if self.idle_exit_s is not None and not self.idle_exit_s > 0:
            raise ValueError(f"--idle-exit-s must be more than 0, got {self.idle_exit_s:g}")


def parse_size(text: str, whole: int, flag: str) -> int:
    """Bytes of "500M", "2.5GiB" or "50%" (of `whole`); ValueError with one sentence for anything else."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{flag} must be a size like 500M, 8G or 50%, got {text!r}")
    number, unit, share = match.groups()
    return int(float(share) / 100 * whole) if share else int(float(number) * UNITS[unit.upper()])


def serve(options: StoreServeOptions) -> None:
    endpoint, settings = endpoint_in(options.folder), _settings(options)

    def run(on_ready: Callable[[], None]) -> None:
        from serving_adapter.model_store import daemon  # here, since gRPC should not be there when we fork

        def ready() -> None:
            _write_options(options, settings, endpoint)
            on_ready()

        keep_standard_streams()
        log_to_standard_error(anew=True)
        asyncio.run(daemon.run(endpoint, settings, ready))
        os._exit(0)  # a thread may hang on a client's file, and would be waited for

    if options.detach:
        _detach(run)
    else:
        run(lambda: print(f"model store on {endpoint.folder}", flush=True))


def _write_options(options: StoreServeOptions, settings: StoreSettings, endpoint: Endpoint) -> None:
    """Keeps the options for whoever starts the next store if this one is killed.

    Of the token they tell only that there was one: without it nobody starts a store that is open to all.
    """
    of_this_start = ("folder", "detach", "idle_exit_s")
    values = {name: value for name, value in asdict(options).items() if name not in of_this_start}
    values |= {"remote": list(options.remote), "cache": str(settings.cache.absolute())}
    values["wants_token"] = settings.token is not None
    if options.token_file is not None:
        values["token_file"] = str(options.token_file.absolute())
    # Whoever reads it meanwhile reads the one before, not a part; and the URLs in it may hold secrets.
    with written_whole(endpoint.options, FOR_THIS_USER) as file:
        file.write(yaml.safe_dump(values).encode())


def _settings(options: StoreServeOptions) -> StoreSettings:
    host_bytes = parse_size(options.host_bytes, memory_bytes(), "--host-bytes")
    cache, token = _cache(options), _token(options.token_file)
    if options.wants_token and token is None:
        fail(f"the store wants a token, and has none; set {TOKEN_VARIABLE}, or give --token-file")
    return StoreSettings(
        host_bytes=host_bytes,
        disk_bytes=parse_size(options.disk_bytes, _file_system_bytes(cache), "--disk-bytes"),
        gpu_bytes=parse_size(options.gpu_bytes, 0, "--gpu-bytes"),
        cache=cache,
        remotes=options.remote,
        policy=options.policy,
        granularity=options.granularity,
        eager_reclaim=options.eager_reclaim,
        client_quota_bytes=parse_size(options.client_quota, host_bytes, "--client-quota"),
        max_clients=options.max_clients,
        token=token,
        socket_mode=0o660 if options.group_access else 0o600,
        idle_exit_s=options.idle_exit_s,
    )


def _cache(options: StoreServeOptions) -> Path:
    """The cache folder; each endpoint has its own, as two stores in one would delete each other's files."""
    own = Path("~/.cache/rrl-store") / quote(str(endpoint_in(options.folder).folder), safe="")
    try:
        return (options.cache or own).expanduser()
    except RuntimeError:
        fail("this user has no home to keep the cache in; give --cache FOLDER")


def _file_system_bytes(folder: Path) -> int:
    """The size of the file system that a folder, which may not exist yet, is or will be on."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return psutil.disk_usage(str(there)).total


def _detach(run: Callable[[Callable[[], None]], None]) -> None:
    """Runs in a process of its own session; returns when it is ready, with its error if it is not."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        if answer != "ready":
            fail(answer or "the model store ended while it started")
        return
    os.setsid()
    os.close(reading)
    with open(os.devnull, "r+b") as nothing:
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)

    def say(text: str) -> None:
        os.write(writing, text.encode())
        os.close(writing)

    try:
        run(lambda: say("ready"))
    except Exception as error:
        with contextlib.suppress(OSError):  # it was ready already, and nobody reads any more
            say(str(error) or type(error).__name__)
        os._exit(FAILED)
    os._exit(0)


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return read_secret(path, "--token-file")
    except ValueError as error:
        fail(str(error))


COMMANDS = {
    "serve": Command(StoreServeOptions, serve, "run the store"),
    "run": Command(RunOptions, run_program, "run a program with the store, unchanged"),
    "ls": Command(questions.ListOptions, questions.list_models, "list the resident models"),
    "pin": Command(questions.PinOptions, questions.pin, "load a model and keep it"),
    "evict": Command(questions.EvictOptions, questions.evict, "evict a model"),
    "stats": Command(questions.StatsOptions, questions.stats, "hits, misses, evictions and bytes"),
}


def main() -> None:
    log_to_standard_error()
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:  # What stands behind `--` there is the program's.
        arguments, _ = split(arguments)
    run = parse_command("rrl-store", COMMANDS, arguments)
    try:
        run()
    except StoreUnavailable as error:
        fail(str(error))
    except OSError as error:
        fail(in_a_sentence(error))
    except StoreError as error:
        print(error, file=sys.stderr)
        raise SystemExit(FAILED) from None


if __name__ == "__main__":
    main()
