"""Records requests, to train a parity model where the deployed model's own data is not at hand (ParM, 4.4).

It keeps a bounded random sample of all items that came (reservoir sampling), so that the first minutes of
a day do not stand for all of it. When the server ends, it writes the `.npz` for `rrl-parity train --data`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from serving_adapter.whole_files import written_whole


class Recording:
    """Keeps a uniform sample of at most `items` of the items (rows) that it is shown."""

    def __init__(self, path: Path, items: int, seed: int = 0) -> None:
        self.path, self.items = path, items
        self.seen = 0
        self._sample: list[np.ndarray] = []
        self._rng = np.random.default_rng(seed)

    def show(self, rows: np.ndarray) -> None:
        """Takes (rows, *item); an item replaces a kept one with probability items / seen (algorithm R)."""
        for row in rows:
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
