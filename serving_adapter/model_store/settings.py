"""How a store is set up; light to import, since a command reads it before it forks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StoreSettings:
    """How a store is set up. Sizes are in bytes; `client_quota_bytes` bounds what one process refers to."""

    host_bytes: int
    disk_bytes: int
    cache: Path
    gpu_bytes: int = 0
    remotes: tuple[str, ...] = ()
    policy: str = "reload-cost"
    granularity: str = "auto"
    eager_reclaim: bool = False
    client_quota_bytes: int = 1 << 62
    max_clients: int = 4096
    max_connections_a_process: int = 16
    token: str | None = None
    socket_mode: int = 0o600
    idle_exit_s: float | None = None
