"""The key to control a server: of ours, or of one of Triton's restricted protocols.

Every program takes it from a file or from the environment, as a machine's other users can read arguments.
"""

from __future__ import annotations

import os
from pathlib import Path

from serving_adapter.secret_file import read_secret

CONTROL_KEY_HEADER = "triton-grpc-protocol-control-key"  # of gRPC, which carries the key
KEY_VARIABLE = "RRL_CONTROL_KEY"


def read_control_key(file: Path | None) -> str | None:
    """The key in the file, else that of the environment; None if there is none.

    ValueError, in one sentence, for a file that cannot be read or a key that cannot be one.
    """
    key = os.environ.get(KEY_VARIABLE) if file is None else read_secret(file, "--control-key-file")
    if key == "":
        raise ValueError(f"{KEY_VARIABLE} is empty, which would lock nothing; set it to a key, or unset it")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ValueError(
            "the control key must be printable ASCII, as it travels in a header; write another one"
        )
    return key
