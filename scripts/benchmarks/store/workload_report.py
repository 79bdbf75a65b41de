"""The tables of `store-workload`: speed-ups by clients and share of models, and requests/s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from scripts.kept_rows import Row

STORE_WAYS = ("lru", "reload-cost")
PEERS = ("torch.load", "load_file")
REACH = 1.0  # requests/s of the store over private loads that copy


class Cell(NamedTuple):
    """The store against a peer at one number of clients and one share of the models."""

    speed_up: float
    throughput: float
    hits: float


def cells(rows: Iterable[Row], way: str, peer: str) -> dict[tuple[int, float], Cell]:
    """By clients and share, over the seeds that both were measured with."""
    by_run = {(r["clients"], r["share"], r["seed"], r["requests"], r["way"]): r for r in rows}
    pairs: dict[tuple[int, float], list[tuple[Row, Row]]] = {}
    for (*run, of_way), row in by_run.items():
        other = by_run.get((*run, peer))
        if of_way == way and other is not None:
            pairs.setdefault((row["clients"], row["share"]), []).append((row, other))
    return {
        at: Cell(
            geometric_mean(speed_up(ours, theirs) for ours, theirs in found),
            geometric_mean(theirs["batch_s"] / ours["batch_s"] for ours, theirs in found),
            fmean(ours["hits"] / ours["requests"] for ours, _ in found),
        )
        for at, found in pairs.items()
    }


def speed_up(ours: Row, theirs: Row) -> float:
    """Geometric mean over the models of the ratio of mean latencies (the paper's, section 6.4)."""
    return geometric_mean(theirs["latency_ms"][name] / ms for name, ms in ours["latency_ms"].items())


def print_tables(rows: Sequence[Row]) -> None:
    for way in STORE_WAYS:
        for peer in PEERS:
            found = cells(rows, way, peer)
            if found:
                shares = sorted({share for _, share in found})
                print(f"\nthe store ({way}) against {peer}: latency speed-up / requests/s (hits)")
                print(f"{'clients':>7}" + "".join(f"{share:>24.0%}" for share in shares))
                for clients in sorted({number for number, _ in found}):
                    line = [found.get((clients, share)) for share in shares]
                    print(f"{clients:7}" + "".join(f"{_shown(cell):>24}" for cell in line))
    print("\nrequests/s")
    ways = [way for way in (*PEERS, *STORE_WAYS) if any(row["way"] == way for row in rows)]
    print(f"{'clients':>7}{'share':>7}" + "".join(f"{way:>14}" for way in ways))
    for at in sorted({(row["clients"], row["share"]) for row in rows}):
        rates = [
            _rate([r for r in rows if (r["clients"], r["share"], r["way"]) == (*at, way)]) for way in ways
        ]
        print(f"{at[0]:7}{at[1]:7.0%}" + "".join(f"{rate:14.2f}" for rate in rates))


def _shown(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell.speed_up:.2f} / {cell.throughput:.2f} ({cell.hits:.0%})"


def _rate(rows: Sequence[Row]) -> float:
    return fmean(row["requests"] / row["batch_s"] for row in rows) if rows else float("nan")


def result(rows: Sequence[Row]) -> dict[str, Any]:
    """The benchmark's figure: the store's requests/s over those of private loads that copy, over all runs."""
    way = next(way for way in STORE_WAYS if any(row["way"] == way for row in rows))
    found = {peer: cells(rows, way, peer) for peer in PEERS}
    first = next((peer for peer in PEERS if found[peer]), PEERS[0])
    gains = {
        peer: round(geometric_mean(cell.throughput for cell in of.values()), 3)
        for peer, of in found.items()
        if of
    }
    print(f"reach: at least the requests/s of {first}, geometric mean over the runs")
    return {
        "value": gains[first],
        "unit": f"times the requests/s of {first}, geometric mean over clients and shares",
        "peer": 1.0,
        "ratio": gains[first],
        "reach": REACH,
        "holds": gains[first] >= REACH,
        "throughput": gains,
        "best_throughput": {
            p: round(max(c.throughput for c in of.values()), 2) for p, of in found.items() if of
        },
        "latency": {
            p: round(geometric_mean(c.speed_up for c in of.values()), 3) for p, of in found.items() if of
        },
        "best_latency": {p: round(max(c.speed_up for c in of.values()), 2) for p, of in found.items() if of},
    }
