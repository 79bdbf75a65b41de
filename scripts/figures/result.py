"""What every figure's `run` returns, and its files: PNG, CSV and one JSON beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPRODUCES, PARTLY, FAILS, NOT_COMPARABLE = "yes", "partly", "no", "not comparable"
NO_CLAIM = "–"  # beside a number of ours for which the paper has no counterpart
VERDICTS = (REPRODUCES, PARTLY, FAILS, NOT_COMPARABLE, NO_CLAIM)


@dataclass(frozen=True)
class Claim:
    """One number or statement of the paper, and its counterpart here."""

    what: str  # the quantity, its unit in it, e.g. "mean latency of RRL against CAPES, WiKi, DeepSpeech"
    paper: str  # as the paper gives it, e.g. "-79.0 %"
    ours: str  # with its interval, e.g. "-61 % [-66, -55]"
    reproduces: str  # one of VERDICTS

    def __post_init__(self) -> None:
        if self.reproduces not in VERDICTS:
            raise ValueError(
                f"a claim's verdict must be one of {', '.join(VERDICTS)}, got {self.reproduces!r}"
            )


@dataclass(frozen=True)
class FigureResult:
    """One reproduced figure."""

    title: str  # e.g. "RRL, Fig. 12: latency over time, CPU knobs"
    setting: str  # one or two sentences: machines, loads, decisions, requests an interval
    seeds: int
    claims: tuple[Claim, ...]
    pictures: tuple[str, ...]  # names of the PNGs in the output folder
    tables: tuple[str, ...]  # names of the CSVs beside them

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> FigureResult:
        """The result of a file; ValueError with one sentence where it is not a figure's JSON."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            fields["claims"] = tuple(Claim(**claim) for claim in fields["claims"])
            fields["pictures"], fields["tables"] = tuple(fields["pictures"]), tuple(fields["tables"])
            return cls(**fields)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"cannot read {path} as a figure's result ({error}): run the figure again"
            ) from error


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes one line for each row, with the columns of the first, and floats to six significant digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
