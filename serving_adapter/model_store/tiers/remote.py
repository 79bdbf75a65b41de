"""The remote tier: a model repository behind any fsspec URL (`file://`, `s3://`, `https://`, `memory://`).

    <url>/<name>/<version>/model.safetensors     versions are whole numbers, as in Triton's repositories

Only an operator names URLs. Clients name models below them, so nobody can have the store fetch what the
operator did not mean.
"""

from __future__ import annotations

import logging
import re
from typing import Any, BinaryIO

from serving_adapter.model_store.errors import StoreError, UnknownModel
from serving_adapter.model_store.tiers.tier import Address

log = logging.getLogger(__name__)

FILE_NAMES = {"safetensors": "model.safetensors"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MAX_NAME_CHARACTERS = 120  # with the version; it becomes part of a file name, "/" as three characters


class Remote:
    """One repository. Its file system's own driver is imported when it is first used."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._system: Any = None

    def check(self) -> None:
        """StoreError if there is no driver for the URL. Nothing is fetched."""
        self._opened()

    def newest_version(self, namespace: str, name: str) -> str | None:
        """The highest numbered version; None if there is none, or the URL cannot be listed."""
        system, root = self._opened()
        try:
            listed = system.ls(f"{root}/{name}", detail=False)
            versions = [str(path).rstrip("/").rpartition("/")[2] for path in listed]
            numbered = sorted((v for v in versions if v.isdecimal()), key=int, reverse=True)
            return next((v for v in numbered if self._exists(Address(namespace, name, v))), None)
        except Exception as error:  # drivers raise what their libraries do
            log.debug("%s cannot be listed: %s", self.url, error)
            return None

    def open(self, address: Address) -> BinaryIO | None:
        """The model's file, to be read from its beginning; None if this repository does not have it."""
        system, _ = self._opened()
        try:
            return system.open(self._path(address), "rb", **self._streaming(system))
        except FileNotFoundError:
            return None

    def _streaming(self, system: Any) -> dict[str, int]:
        """A web server need not know byte ranges, and the file is read from its start to its end anyway."""
        return {"block_size": 0} if "http" in system.protocol else {}

    def _exists(self, address: Address) -> bool:
        return bool(self._opened()[0].exists(self._path(address)))

    def _path(self, address: Address) -> str:
        return f"{self._opened()[1]}/{address.name}/{address.version}/{FILE_NAMES[address.namespace]}"

    def _opened(self) -> tuple[Any, str]:
        if self._system is None:
            from fsspec.core import url_to_fs

            try:
                system, root = url_to_fs(self.url, use_listings_cache=False)
            except (ImportError, ValueError) as error:
                raise StoreError(f"the remote {self.url} cannot be used: {error}") from None
            self._system = system, root.rstrip("/")
        return self._system


def size_of(stream: Any) -> int | None:
    """How long a remote file is; None where its driver does not say."""
    size = getattr(stream, "size", None)
    return size if isinstance(size, int) else None


def check_name(address: Address) -> None:
    """UnknownModel unless name and version are plain: they become part of a path."""
    plain = NAME.fullmatch(address.name) and (not address.version or VERSION.fullmatch(address.version))
    if not plain or len(address.name) + len(address.version) > MAX_NAME_CHARACTERS:
        raise UnknownModel(
            f"{address.name[:80]!r} version {address.version[:80]!r} cannot be a model's name; "
            "it is letters, digits, '_', '-' and '.', with '/' between parts"
        )
