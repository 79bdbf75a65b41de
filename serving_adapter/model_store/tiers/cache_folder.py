"""The folder of the disk tier: which one a store may keep its files in, and which files there are its own.

A store deletes what it finds and does not know. So it only works in a folder that carries its mark. It marks
a folder that holds nothing but what a store writes, an empty one included, and refuses any other. Even in its
own folder it deletes no file but those whose name has the form of a store's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from serving_adapter.model_store.errors import StoreError
from serving_adapter.whole_files import UNFINISHED

MARK = "rrl-store-cache"
LOCK = "lock"
BLOBS, MODELS = "blobs", "models"

_BLOB = re.compile(r"[0-9a-f]{64}")
_MANIFEST = re.compile(r"[^/]+@[^/]+\.json")


def claim(folder: Path) -> None:
    """Makes the folder, or takes one that is a store's, and marks it. StoreError for anybody else's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / MARK).exists():
        return
    foreign = next(_foreign_files(folder), None)
    if foreign is not None:
        raise StoreError(
            f"{folder} holds files that no store wrote, such as {foreign.relative_to(folder)}, and a store "
            "deletes what it does not know in its cache; give --cache an empty folder, or one of its own"
        )
    (folder / MARK).touch(mode=0o600)


def is_blob(name: str) -> bool:
    """Whether a store would call a weight file so."""
    return _BLOB.fullmatch(name) is not None


def blob_names(folder: Path) -> list[str]:
    """The weight files that are there."""
    return [path.name for path in (folder / BLOBS).iterdir() if is_blob(path.name) and path.is_file()]


def leftovers(folder: Path) -> list[Path]:
    """Files that a store which was killed had not yet written whole."""
    beside = [*(folder / BLOBS).iterdir(), *(folder / MODELS).glob("*/*")]
    return [path for path in beside if UNFINISHED.fullmatch(path.name) and path.is_file()]


def _foreign_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name == BLOBS and path.is_dir():
            yield from (p for p in path.iterdir() if not is_blob(p.name) and not UNFINISHED.fullmatch(p.name))
        elif path.name == MODELS and path.is_dir():
            for namespace in path.iterdir():
                yield from _not_of_models(namespace)
        elif path.name != LOCK:
            yield path


def _not_of_models(namespace: Path) -> Iterator[Path]:
    if not namespace.is_dir():
        yield namespace
        return
    for path in namespace.iterdir():
        if not _MANIFEST.fullmatch(path.name) and not UNFINISHED.fullmatch(path.name):
            yield path
