"""What an operator asks of a running model store: `rrl-store ls`, `pin`, `evict` and `stats`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional

from serving_adapter.model_store.clients.client import OPEN_TIMEOUT_S, Client
from serving_adapter.model_store.endpoint import endpoint_in
from serving_adapter.model_store.protocol import model_store_pb2 as pb

TIER = re.compile(r"(host|disk|gpu\d*)?")


@dataclass(frozen=True)
class ListOptions:
    """Lists the models that are resident, and in which tiers."""

    folder: Path | None = None
    """Where the store's sockets are."""


@dataclass(frozen=True)
class PinOptions:
    """Loads a model and keeps it in host memory, whoever refers to it."""

    name: Positional[str]
    """The model, as `rrl-store ls` shows it."""
    version: str = ""
    """Its version; the default is the newest, with --release the newest that is pinned."""
    release: bool = False
    """Lets it be evicted again."""
    folder: Path | None = None
    """Where the store's sockets are."""


@dataclass(frozen=True)
class EvictOptions:
    """Evicts a model that is not in use."""

    name: Positional[str]
    """The model, as `rrl-store ls` shows it."""
    version: str = ""
    """Its version; the default is every one."""
    tier: str = ""
    """The tier: gpu (gpu1, gpu2, ... on further devices), host or disk; the default is all."""
    folder: Path | None = None
    """Where the store's sockets are."""

    def __post_init__(self) -> None:
        if not TIER.fullmatch(self.tier):
            raise ValueError(f"--tier must be host, disk, gpu, gpu1, ..., got {self.tier!r}")


@dataclass(frozen=True)
class StatsOptions:
    """Shows hits, misses, evictions and bytes of every tier."""

    folder: Path | None = None
    """Where the store's sockets are."""


def list_models(options: ListOptions) -> None:
    reply = _client(options.folder).call("List", pb.Empty())
    table = Table(
        Column("model", overflow="fold"), "version", "bytes", "tiers", "references", "opens", "pinned"
    )
    for model in reply.models:
        version = model.address.version if len(model.address.version) < 24 else "as it is"
        table.add_row(
            escape("".join(c if c.isprintable() else "?" for c in model.address.name)),
            version,
            f"{model.size_bytes:,}",
            " ".join(model.tiers),
            str(model.references),
            str(model.opens),
            "yes" if model.pinned else "",
        )
    Console().print(table)


def pin(options: PinOptions) -> None:
    address = pb.Address(namespace="safetensors", name=options.name, version=options.version)
    request = pb.PinRequest(address=address, pinned=not options.release)
    _client(options.folder).call("Pin", request, OPEN_TIMEOUT_S)


def evict(options: EvictOptions) -> None:
    address = pb.Address(namespace="safetensors", name=options.name, version=options.version)
    _client(options.folder).call("Evict", pb.EvictRequest(address=address, tier=options.tier))


def stats(options: StatsOptions) -> None:
    reply = _client(options.folder).call("Stats", pb.Empty())
    table = Table("tier", "used", "capacity", "hits", "misses", "evictions")
    for tier in reply.tiers:
        capacity = f"{tier.capacity_bytes:,}" if tier.capacity_bytes else ""
        used = f"{tier.used_bytes:,}" if tier.capacity_bytes else ""
        table.add_row(tier.tier, used, capacity, str(tier.hits), str(tier.misses), str(tier.evictions))
    console = Console()
    console.print(table)
    console.print(
        f"{reply.models} models, {reply.references} references of {reply.clients} connections; content "
        f"addressing saves {reply.deduplicated_bytes:,} bytes; handing over an object takes "
        f"{1e6 * reply.sharing_overhead_s:.0f} µs, the disk gives {reply.disk_bytes_per_s / 1e6:,.0f} MB/s"
    )


def _client(folder: Path | None) -> Client:
    return Client(endpoint_in(folder), starts_store=False)
