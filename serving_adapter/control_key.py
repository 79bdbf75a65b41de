"""The key to control a server: of ours, or of one of Triton's restricted protocols.

Every program takes it from a file or from the environment, as a machine's other users can read arguments.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

CONTROL_KEY_HEADER = "triton-grpc-protocol-control-key"  # of gRPC, which carries the key
KEY_VARIABLE = "RRL_CONTROL_KEY"


def read_control_key(file: Path | None) -> str | None:
    """The key in the file, else that of the environment; None if there is none.

    ValueError, in one sentence, for a file that cannot be read or a key that cannot be one.
    """
    key = os.environ.get(KEY_VARIABLE)
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").strip()
            note_open_file(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read --control-key-file {file}: {error}") from None
    if key == "":
        raise ValueError(
            "the control key is empty, which would lock nothing; write one into its file, or set none"
        )
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ValueError(
            "the control key must be printable ASCII, as it travels in a header; write another one"
        )
    return key


def note_open_file(file: Path) -> None:
    """Says so where others than its owner may read a file with a secret."""
    if file.stat().st_mode & 0o077:
        log.warning("others than its owner may read %s; close it with chmod 600", file)
