"""Records items, to train a parity model where the deployed model's own data is not at hand (ParM, 4.4).

It keeps a bounded random sample of all items that came (reservoir sampling), so that the first minutes of
a day do not stand for all of it. When the server ends, it writes the `.npz` for `rrl-parity train --data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from serving_adapter.server.requests import InputTensor, Specs
from serving_adapter.whole_files import written_whole


class Recording(Protocol):
    """What is kept of the requests that come, until the server ends."""

    path: Path
    unit: str
    """Of what it counts."""
    seen: int

    def show(self, specs: Specs, inputs: Sequence[InputTensor], arrived_ns: int) -> None:
        """Takes the inputs of a request, in the order of the model's."""

    def write(self) -> int:
        """Writes the file, if anything is kept, and returns how much that is."""
        ...


class ItemSample:
    """Keeps a uniform sample of at most `items` of the items (rows) of a model with one input."""

    unit = "items"

    def __init__(self, path: Path, items: int, seed: int = 0) -> None:
        self.path, self.items = path, items
        self.seen = 0
        self._sample: list[np.ndarray] = []
        self._rng = np.random.default_rng(seed)

    def show(self, specs: Specs, inputs: Sequence[InputTensor], arrived_ns: int) -> None:
        """Takes a request; an item replaces a kept one with probability items / seen (algorithm R)."""
        (spec,) = specs.values()
        for row in spec.codec.received(*inputs[0]):
            if not np.isfinite(row).all():
                continue  # it is of no use for training
            self.seen += 1
            if len(self._sample) < self.items:
                self._sample.append(row.copy())
                continue
            place = int(self._rng.integers(self.seen))
            if place < self.items:
                self._sample[place] = row.copy()

    def write(self) -> int:
        """Writes the sample, if there is one, whole or not at all; returns the number of items."""
        if self._sample:
            with written_whole(self.path) as file:
                np.savez(file, x=np.stack(self._sample))
        return len(self._sample)
