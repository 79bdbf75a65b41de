"""Where a store listens: a folder that only its user can enter, with two sockets in it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from serving_adapter.model_store.errors import StoreError, StoreUnavailable

FOLDER_VARIABLE = "RRL_STORE"
TOKEN_VARIABLE = "RRL_STORE_TOKEN"
OFF = "off"
MAX_SOCKET_PATH_BYTES = 100  # Linux allows 107


@dataclass(frozen=True)
class Endpoint:
    """`rpc` is the gRPC service; `descriptors` gives sessions and hands descriptors over."""

    folder: Path

    @property
    def rpc(self) -> Path:
        return self.folder / "rpc.sock"

    @property
    def descriptors(self) -> Path:
        return self.folder / "descriptors.sock"

    @property
    def options(self) -> Path:
        """How the last store that served here was set up, for the next one to be the same."""
        return self.folder / "options.yaml"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def check(self) -> None:
        """StoreError if somebody else could have put sockets there, or the paths are too long for sockets."""
        if len(os.fsencode(self.descriptors)) > MAX_SOCKET_PATH_BYTES:
            raise StoreError(f"the path {self.descriptors} is too long for a socket; choose a shorter folder")
        status = self.folder.stat()
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH:
            raise StoreError(
                f"{self.folder} belongs to another user or everyone may write to it, so it is not used"
            )


def default_endpoint() -> Endpoint:
    """The user's own: $RRL_STORE, else in $XDG_RUNTIME_DIR, else in /tmp.

    StoreUnavailable if it is switched off.
    """
    if switched_off():
        raise StoreUnavailable(f"the model store is switched off ({FOLDER_VARIABLE}={OFF})")
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Endpoint(Path(folder).absolute())
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Endpoint(Path(runtime) / "rrl-store")
    return Endpoint(Path(f"/tmp/rrl-store-{os.getuid()}"))


def switched_off() -> bool:
    """$RRL_STORE=off: weights are loaded privately."""
    return os.environ.get(FOLDER_VARIABLE) == OFF


def make_folder(endpoint: Endpoint, mode: int = 0o700) -> None:
    try:
        endpoint.folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{endpoint.folder} cannot be a store's folder: {error.strerror}") from None
    endpoint.check()


def bearer(token: str | None) -> list[tuple[str, str]]:
    """The metadata of a call to a store that wants a token."""
    return [] if token is None else [("authorization", f"Bearer {token}")]
