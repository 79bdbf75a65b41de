"""Records requests as they come, to be sent again at the same moments (`rrl-load --arrivals recorded`).

The first requests are kept, up to a number and a size; the others are counted. When the server ends, each
is a line of the file, a JSON object: `arrival_s` after the first one, and `inputs` by name. An input has its
`shape`, batch dimension included, and its bytes as they travel (`raw`, in base64).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from serving_adapter.server.requests import InputTensor, Specs
from serving_adapter.whole_files import written_whole

MOST_BYTES = 512 << 20
"""Of the inputs, which the front process holds."""


class RequestRecording:
    """Keeps the first `items` requests that it is shown, of any model's inputs."""

    unit = "requests"

    def __init__(self, path: Path, items: int, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.items = path, items
        self.seen = 0
        self._free_bytes = most_bytes
        self._kept: list[tuple[int, dict[str, InputTensor]]] = []

    def show(self, specs: Specs, inputs: Sequence[InputTensor], arrived_ns: int) -> None:
        """Takes the inputs of a request, in the order of the model's."""
        self.seen += 1
        if self.seen > len(self._kept) + 1 or len(self._kept) == self.items:
            return  # once one is left out, the gaps are no longer those that there were
        self._free_bytes -= sum(len(tensor.data) for tensor in inputs)
        if self._free_bytes < 0:
            return
        copies = [InputTensor(bytes(tensor.data), tensor.shape) for tensor in inputs]
        self._kept.append((arrived_ns, dict(zip(specs, copies, strict=True))))

    def write(self) -> int:
        """Writes what was kept, if anything, whole or not at all; returns the number of requests."""
        if self._kept:
            first_ns = self._kept[0][0]
            with written_whole(self.path) as file:
                for arrived_ns, inputs in self._kept:
                    line = {"arrival_s": 1e-9 * (arrived_ns - first_ns), "inputs": _written(inputs)}
                    file.write(json.dumps(line).encode() + b"\n")
        return len(self._kept)


def _written(inputs: dict[str, InputTensor]) -> dict[str, object]:
    return {
        name: {"shape": tensor.shape, "raw": base64.b64encode(tensor.data).decode()}
        for name, tensor in inputs.items()
    }
