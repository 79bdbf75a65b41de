"""Files with a secret: a key, or a token."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)


def read_secret(file: Path, flag: str) -> str:
    """What is in the file that the flag names; ValueError, one sentence, where there is nothing."""
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"cannot read {flag} {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {flag} {file}: it is not UTF-8 text") from None
    if not secret:
        raise ValueError(f"{flag} {file} is empty, which would lock nothing; write the secret into it")
    note_open_file(file)
    return secret


def note_open_file(file: Path) -> None:
    """Says so where others than its owner may read the file."""
    if file.stat().st_mode & 0o077:
        log.warning("others than its owner may read %s; close it with chmod 600", file)
