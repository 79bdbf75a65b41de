"""The remote repositories together: who has a model, and which of its versions is the newest."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.errors import UnknownModel
from serving_adapter.model_store.tiers.remote import Remote
from serving_adapter.model_store.tiers.tier import Address

NEWEST_VERSION_KEPT_S = 30.0


class Repositories:
    """The repositories in the order in which they are asked; `hits` and `misses` are counted over all."""

    def __init__(self, remotes: Sequence[Remote], blocking_calls: BlockingCalls) -> None:
        self.remotes = list(remotes)
        self.hits = self.misses = 0
        self._blocking_calls = blocking_calls
        self._newest: dict[tuple[str, str], tuple[float, str]] = {}

    async def newest_version(self, address: Address, resident: Iterable[Address]) -> str:
        """The newest version that a repository lists, else the newest that is resident.

        UnknownModel if there is none.
        """
        key = (address.namespace, address.name)
        found_s, version = self._newest.get(key, (-NEWEST_VERSION_KEPT_S, ""))
        if time.monotonic() - found_s < NEWEST_VERSION_KEPT_S:
            return version
        for repository in self.remotes:
            try:
                newest = await self._blocking_calls.run(repository.newest_version, *key)
            except OSError:
                continue
            if newest is not None:
                self._newest[key] = (time.monotonic(), newest)
                return newest
        local = [a.version for a in resident if a[:2] == key and a.version.isdecimal()]
        if not local:
            raise UnknownModel(f"no repository lists a version of {address.name!r}; name the version")
        return max(local, key=int)

    def missing(self, address: Address) -> UnknownModel:
        """Counts a miss; the error to raise for a model that no repository has."""
        self.misses += 1
        where = ", ".join(repository.url for repository in self.remotes) or "there is no --remote"
        return UnknownModel(f"no tier has the model {address} (remote repositories: {where})")
