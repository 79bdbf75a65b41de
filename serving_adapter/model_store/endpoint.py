"""Where a store listens: a folder with two sockets in it, which only its user (or a group) can enter."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
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
    is_chosen: bool = True  # by the user, who may trust another's folder; a default one may be a trap

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
        """StoreError if somebody else could have put sockets there, or the paths are too long for sockets.

        A link counts as its maker's, wherever it leads.
        """
        if len(os.fsencode(self.descriptors)) > MAX_SOCKET_PATH_BYTES:
            raise StoreError(f"the path {self.descriptors} is too long for a socket; choose a shorter folder")
        link, status = self.folder.lstat(), self.folder.stat()
        is_foreign = not {link.st_uid, status.st_uid} <= {os.getuid(), 0} and not self.is_chosen
        if is_foreign or status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
            raise StoreError(
                f"{self.folder} belongs to another user, or its group or everyone may write to it, so it is "
                "not used; make it your own with chmod go-w, or choose another folder"
            )


def endpoint_in(folder: Path | None) -> Endpoint:
    """The one that a user named, or else the user's own."""
    return default_endpoint() if folder is None else Endpoint(folder.absolute())


def default_endpoint() -> Endpoint:
    """The user's own: $RRL_STORE, else in $XDG_RUNTIME_DIR, else in /tmp.

    StoreUnavailable if it is switched off.
    """
    if switched_off():
        raise StoreUnavailable(f"the model store is switched off ({FOLDER_VARIABLE}={OFF})")
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Endpoint(Path(folder).absolute())
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Endpoint(Path(runtime) / "rrl-store", is_chosen=False)
    return Endpoint(Path(f"/tmp/rrl-store-{os.getuid()}"), is_chosen=False)


def switched_off() -> bool:
    """$RRL_STORE=off: weights are loaded privately."""
    return os.environ.get(FOLDER_VARIABLE) == OFF


def make_folder(endpoint: Endpoint) -> None:
    try:
        endpoint.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{endpoint.folder} cannot be a store's folder: {error.strerror}") from None
    replace(endpoint, is_chosen=False).check()  # nobody serves in another's folder


def bearer(token: str | None) -> list[tuple[str, str]]:
    """The metadata of a call to a store that wants a token."""
    return [] if token is None else [("authorization", f"Bearer {token}")]
