"""An honest client of a store that others attack: opens its file again and again, and looks at all bytes.

`python -m scripts.robustness.fuzz.store.honest_client FOLDER FILE` says so when it has opened the file
once. It ends when its standard input does, and then says what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path

from serving_adapter.model_store import Client, StoreError
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.protocol import model_store_pb2 as pb

READY = "ready"
FILLER = 200  # of every byte of the file's tensors
PAUSE_S = 0.01
OPENINGS_OF_ONE_STATE = 10  # then the file is another for the store, which reads it anew
MOST_FAULTS = 5


@dataclass
class HonestlySeen:
    """What an honest client saw."""

    openings: int = 0
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def main() -> None:
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    seen, is_told = HonestlySeen(), False
    with Client(Endpoint(folder), starts_store=False) as client:
        while not select.select([sys.stdin], [], [], PAUSE_S)[0] and len(seen.faults) < MOST_FAULTS:
            began_s = time.monotonic()
            try:
                _open(client, path)
                client.call("List", pb.Empty())
                client.call("Stats", pb.Empty())
            except (StoreError, AssertionError) as fault:
                seen.faults.append(str(fault))
            seen.slowest_s = max(seen.slowest_s, time.monotonic() - began_s)
            seen.openings += 1
            if seen.openings % OPENINGS_OF_ONE_STATE == 0:
                path.touch()
            if not is_told:
                print(READY, flush=True)
                is_told = True
    print(json.dumps(asdict(seen)), flush=True)


def _open(client: Client, path: Path) -> None:
    """StoreError, or AssertionError where a byte is another's."""
    with path.open("rb") as file:
        opened = client.open_file(file, "honest")
    assert opened.memory is not None
    for tensor in opened.tensors:
        begin = opened.memory.starts[tensor.segment] + tensor.offset_bytes
        data = bytes(opened.memory.buffer[begin : begin + prod(tensor.shape)])
        if set(data) != {FILLER}:
            raise AssertionError(f"tensor {tensor.name} holds bytes of another file")


if __name__ == "__main__":
    main()
