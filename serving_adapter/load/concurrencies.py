"""How a command line writes the concurrencies of a closed loop: `4`, `1,4,16` or `1:8`."""

from __future__ import annotations

MOST_CONCURRENCY = 4096  # requests under way at once
MOST_LEVELS = 64


def parse_concurrencies(given: int | str | None) -> list[int]:
    """Ascending, each once; none for None. ValueError, in one sentence, for what is none."""
    if given is None:
        return []
    levels: set[int] = set()
    for part in str(given).split(","):
        low, colon, high = part.partition(":")
        try:
            first, last = int(low), int(high if colon else low)
        except ValueError:
            first, last = 0, 0
        if not 1 <= first <= last <= MOST_CONCURRENCY:
            raise ValueError(
                f"--concurrency must be whole numbers from 1 to {MOST_CONCURRENCY}, as in 4, 1,4,16 or 1:8, "
                f"got {given!r}"
            )
        levels.update(range(first, last + 1))
        if len(levels) > MOST_LEVELS:
            raise ValueError(f"--concurrency must be at most {MOST_LEVELS} levels, got {given!r}")
    return sorted(levels)
