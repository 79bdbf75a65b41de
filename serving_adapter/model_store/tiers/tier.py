"""A level of the memory hierarchy: which models it holds, how full it is, and what goes when it is full.

Pure bookkeeping: a tier's subclass knows what an entry really is, and frees it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.tiers.eviction import REMEMBERED_KEYS, EvictionPolicy, Usage


class Address(NamedTuple):
    """What a model is called: its format, its name, its version."""

    namespace: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.version}"


Content = TypeVar("Content")


class TierEntry(Generic[Content]):
    """A model in a tier. It stays while somebody refers to it, or it is pinned."""

    def __init__(self, usage: Usage, content: Content) -> None:
        self.usage, self.content = usage, content
        self.references = 0
        self.pinned = False

    @property
    def in_use(self) -> bool:
        return self.references > 0 or self.pinned


class Tier(Generic[Content]):
    """`capacity_bytes` bounds `used_bytes`, in which what is being filled (`reserved_bytes`) counts.

    `held_bytes` are those of all entries together; a tier whose entries share bytes counts them once.
    """

    name: str

    def __init__(self, capacity_bytes: int, policy: EvictionPolicy) -> None:
        self.capacity_bytes, self.policy = capacity_bytes, policy
        self.entries: dict[Address, TierEntry[Content]] = {}
        self.held_bytes = self.reserved_bytes = 0
        self.on_evicted: Callable[[Content], object] = lambda content: None
        self.hits = self.misses = self.evictions = 0
        self._uses = 0
        self._evicted_uses: OrderedDict[Address, int] = OrderedDict()

    def own_bytes(self, entry: TierEntry[Content]) -> int:
        """Bytes that are held for this entry alone: they come and go with it."""
        return entry.usage.size_bytes

    def lasting_bytes(self) -> int:
        """Bytes that would still be held if everything that is not in use went."""
        return sum(entry.usage.size_bytes for entry in self.entries.values() if entry.in_use)

    def _free(self, entry: TierEntry[Content]) -> None:
        """Gives the entry's bytes back."""
        raise NotImplementedError

    @property
    def used_bytes(self) -> int:
        return self.held_bytes + self.reserved_bytes

    def look_up(self, address: Address) -> TierEntry[Content] | None:
        """The entry, counted as a hit and as used; None is counted as a miss."""
        entry = self.entries.get(address)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
            self._use(entry)
        return entry

    def add(self, address: Address, size_bytes: int, reload_s: float, content: Content) -> TierEntry[Content]:
        """Adds a model that is not there yet."""
        uses = self._evicted_uses.pop(address, 0)
        entry = TierEntry(Usage(address, size_bytes, reload_s, uses), content)
        self.entries[address] = entry
        self.held_bytes += self.own_bytes(entry)
        self._use(entry)
        return entry

    def reserve(self, size_bytes: int, check: Callable[[int], object] = lambda size_bytes: None) -> None:
        """Makes room and keeps it until `unreserve`; NoRoom, with nothing evicted, if there is none.

        `check` may refuse those bytes too, before anything is evicted for them.
        """
        self._check(size_bytes)
        check(size_bytes)
        self.shrink_to(self.capacity_bytes - size_bytes)
        self.reserved_bytes += size_bytes

    def _check(self, size_bytes: int) -> None:
        """NoRoom if there is none for that many bytes, even without everything that is not in use."""
        if size_bytes > self.capacity_bytes:
            raise NoRoom(
                f"the model has {size_bytes:,} bytes, the {self.name} tier holds "
                f"{self.capacity_bytes:,} in all; start the store with more"
            )
        if self.used_bytes + size_bytes <= self.capacity_bytes:
            return
        in_use_bytes = self.lasting_bytes() + self.reserved_bytes
        if in_use_bytes + size_bytes > self.capacity_bytes:
            raise NoRoom(
                f"the model has {size_bytes:,} bytes; of the {self.name} tier's {self.capacity_bytes:,} "
                f"{in_use_bytes:,} are in use, and models in use are never evicted"
            )

    def shrink_to(self, size_bytes: int) -> None:
        """Evicts until no more than that is used, or everything that is left is in use."""
        victims = self._victims()  # ranked once
        while self.used_bytes > size_bytes and (victim := next(victims, None)) is not None:
            self.evict(victim)
            self.evictions += 1

    def evict_one(self) -> bool:
        """Evicts the entry that is to go first; False if every one is in use."""
        victim = next(self._victims(), None)
        if victim is None:
            return False
        self.evict(victim)
        self.evictions += 1
        return True

    def unreserve(self, size_bytes: int) -> None:
        self.reserved_bytes -= size_bytes

    def evict(self, entry: TierEntry[Content]) -> None:
        """Frees an entry that is not in use."""
        if entry.in_use:
            raise NoRoom(f"{entry.usage.key} is in use, so it is not evicted")
        del self.entries[entry.usage.key]
        self.held_bytes -= self.own_bytes(entry)
        self._evicted_uses[entry.usage.key] = entry.usage.uses
        if len(self._evicted_uses) > REMEMBERED_KEYS:
            self._evicted_uses.popitem(last=False)
        self._free(entry)
        self.on_evicted(entry.content)

    def _victims(self) -> Iterator[TierEntry[Content]]:
        """Unused entries in the order of their eviction. They are ranked when the first is asked for."""
        unused = [entry for entry in self.entries.values() if not entry.in_use]
        yield from sorted(unused, key=lambda entry: self.policy.rank(entry.usage))

    def _use(self, entry: TierEntry[Content]) -> None:
        self._uses += 1
        entry.usage.uses += 1
        entry.usage.last_use = self._uses
        self.policy.used(entry.usage)
