"""Coding groups (ParM, section 4.1): which batches share a parity batch, and what can be reconstructed.

A group has k batches that were dispatched one after the other, and r parity batches. The i-th queries of
its batches are encoded to the i-th query of each parity batch. Batches may differ in size: a shorter one
is repeated from its beginning, so that every parity query is made of k real queries.

Pure bookkeeping: no clock, no process, no event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from serving_adapter.parity.coding import Encoder, coefficients, decode, is_decodable

Tensors = Mapping[str, np.ndarray]
"""Arrays by tensor name, each (rows, *item)."""


class Member:
    """A batch in a coding group: its queries, and its outputs once they are there."""

    __slots__ = ("_join", "_queries", "group", "outputs", "rows")

    def __init__(self, rows: int, join: Callable[[], Tensors]) -> None:
        """`join` puts its queries together, which is done when they are first needed."""
        self.rows, self._join = rows, join
        self._queries: Tensors | None = None
        self.outputs: Tensors | None = None
        self.group: CodingGroup | None = None

    @property
    def queries(self) -> Tensors:
        if self._queries is None:
            self._queries = self._join()
        return self._queries


class CodingGroup:
    """k members and the outputs of r parity models, as far as they have come."""

    def __init__(self, k: int, r: int) -> None:
        self.k = k
        self.coefficients = coefficients(k, r)
        self.members: list[Member] = []
        self.parities: list[Tensors | None] = [None] * r

    @property
    def is_full(self) -> bool:
        return len(self.members) == self.k

    @property
    def rows(self) -> int:
        """The rows of a parity batch: those of the longest member."""
        return max(member.rows for member in self.members)

    def add(self, member: Member) -> None:
        assert not self.is_full
        member.group = self
        self.members.append(member)

    def encode(self, row: int, name: str, encoder: Encoder, out: np.ndarray) -> None:
        """Writes parity batch `row` of input `name` to `out` (self.rows, *item)."""
        queries = [repeated_to(self.rows, member.queries[name]) for member in self.members]
        encoder.encode(queries, self.coefficients[row], out)

    @property
    def missing(self) -> list[Member]:
        return [member for member in self.members if member.outputs is None]

    def dissolve(self) -> None:
        """Lets go of its members, which refer to it, so that their memory is free at once."""
        for member in self.members:
            member.group = None

    @property
    def is_decodable(self) -> bool:
        """Whether outputs are missing and can be reconstructed from what is there."""
        there = [member.outputs is not None for member in self.members]
        parities_there = [parity is not None for parity in self.parities]
        return self.is_full and not all(there) and is_decodable(there, parities_there)

    def reconstruct(self) -> dict[Member, Tensors]:
        """Approximate outputs of the missing members; the group must be decodable.

        Members whose queries are lost beside much larger ones are left out: their outputs would be those of
        the others' rounding. So are all where outputs differ in size, as those of a model may that was
        described by an example. A thread may do it: outputs that come meanwhile count as missing.
        """
        outputs, parities = [member.outputs for member in self.members], list(self.parities)
        names = next(parity for parity in parities if parity is not None).keys()
        there = [tensors for tensors in (*outputs, *parities) if tensors is not None]
        if any(len({tensors[name].shape[1:] for tensors in there}) > 1 for name in names):
            return {}
        swallowed = self._swallowed()
        decoded = {name: self._decode(name, outputs, parities) for name in names}
        return {
            member: {name: _first(member.rows, decoded[name][i]) for name in names}
            for i, member in enumerate(self.members)
            if outputs[i] is None and not swallowed[i]
        }

    def _swallowed(self) -> np.ndarray:
        """Which members have a query that keeps less than half its digits beside a larger one; (k,) bool.

        A query that is no number counts as swallowed, and those beside it too.
        """
        swallowed = np.zeros(self.k, bool)
        for name, queries in self.members[0].queries.items():
            max_ratio = np.finfo(queries.dtype).eps ** -0.5
            sizes = np.stack(
                [repeated_to(self.rows, _sizes(member.queries[name])) for member in self.members]
            )
            swallowed |= ~(sizes.max(axis=0) <= max_ratio * sizes).all(axis=1)
        return swallowed

    def _decode(
        self, name: str, outputs: Sequence[Tensors | None], parities: Sequence[Tensors | None]
    ) -> dict[int, np.ndarray]:
        known = [None if output is None else repeated_to(self.rows, output[name]) for output in outputs]
        coded = [None if parity is None else parity[name] for parity in parities]
        return decode(self.coefficients, known, coded)


class CodingGroups:
    """Puts batches into groups in the order in which they are dispatched.

    It keeps the last answered members, to fill up a group that would wait too long for its last ones.
    """

    def __init__(self, k: int, r: int) -> None:
        self.k, self.r = k, r
        self.open: CodingGroup | None = None
        self._answered: deque[Member] = deque(maxlen=k - 1)

    def add(self, member: Member) -> CodingGroup | None:
        """The member's group if it is full now, else None."""
        self.open = self.open or CodingGroup(self.k, self.r)
        self.open.add(member)
        return self._taken() if self.open.is_full else None

    def member_answered(self, member: Member, outputs: Tensors) -> None:
        member.outputs = outputs
        self._answered.append(member)

    def flush(self) -> CodingGroup | None:
        """Ends the open group: filled up with members answered before, or (None) given up.

        It is given up if it has nothing to reconstruct, or if too few others were answered so far.
        """
        group = self.open
        if group is None:
            return None
        others: Sequence[Member] = [member for member in self._answered if member.group is not group]
        wanted = self.k - len(group.members)
        if not group.missing or len(others) < wanted:
            self.open = None
            group.dissolve()
            return None
        for member in others[-wanted:]:
            group.add(_copy(member))
        return self._taken()

    def _taken(self) -> CodingGroup | None:
        group, self.open = self.open, None
        return group


def _sizes(queries: np.ndarray) -> np.ndarray:
    """The largest magnitude in each query, (rows,)."""
    return np.abs(queries.reshape(len(queries), -1)).max(axis=1).astype(np.float64)


def repeated_to(rows: int, array: np.ndarray) -> np.ndarray:
    """The array's rows again and again until there are `rows` of them; itself if it has as many."""
    return array if len(array) == rows else array[np.arange(rows) % len(array)]


def _first(rows: int, array: np.ndarray) -> np.ndarray:
    """Its first rows, in memory of their own."""
    return array if len(array) == rows else array[:rows].copy()


def _copy(member: Member) -> Member:
    copy = Member(member.rows, lambda: member.queries)
    copy.outputs = member.outputs
    return copy
