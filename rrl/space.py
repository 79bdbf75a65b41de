"""Knobs and the grid of configurations they span.

| symbol | here | meaning |
|---|---|---|
| c | configuration | a value for every knob |
| C | `ConfigurationSpace` | the grid of configurations, numbered 0 .. size-1 in row-major order |
| ‖c - c'‖ | `distances` | Euclidean distance between *indices* (RRL, Fig. 9): 4 and 8 are neighbours |
| C(c) | `region` | the configurations within radius δ of c (RRL, section 4.2.1) |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rrl.knobs import THREAD_KNOBS, model_and_knob
from rrl.knobs import shown as shown  # an old place of this name, kept for those who import it here

MAX_ROWS = 20_000  # of a grid that is kept row by row; a larger one is counted through

Configuration = Mapping[str, int]
"""A value for every knob of a space, e.g. `{"instances": 2, "max_batch_size": 8}`."""


@dataclass(frozen=True)
class Knob:
    """One tunable parameter of a server and the values it may take, ascending."""

    name: str
    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"knob {self.name!r} has no values; give at least one, e.g. {self.name}=1,2,4")
        if any(b <= a for a, b in zip(self.values, self.values[1:], strict=False)):
            raise ValueError(
                f"knob {self.name!r}: values must ascend without repeats, got {list(self.values)}"
            )
        if self.values[0] < 0:
            raise ValueError(f"knob {self.name!r}: values must not be negative, got {self.values[0]}")


@dataclass(frozen=True)
class ConfigurationSpace:
    """The grid spanned by some knobs; a configuration is named by its number in the grid."""

    knobs: tuple[Knob, ...]

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        if not names:
            raise ValueError("a configuration space needs at least one knob")
        if len(set(names)) != len(names):
            raise ValueError(f"each knob may appear once, got {', '.join(names)}")

    @classmethod
    def of(cls, **values: Sequence[int]) -> ConfigurationSpace:
        """`ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 4, 8])`."""
        return cls(tuple(Knob(name, tuple(v)) for name, v in values.items()))

    @classmethod
    def parse(cls, texts: Sequence[str] | str) -> ConfigurationSpace:
        """Reads `instances=1:4,max_batch_size=1,2,4,8`, as one string or one string a knob.

        `a:b` stands for every integer from a to b. Raises ValueError with one sentence for anything else.
        """
        text = texts if isinstance(texts, str) else ",".join(texts)
        values: dict[str, list[int]] = {}
        name = ""
        for part in filter(None, (p.strip() for p in text.replace(" ", ",").split(","))):
            left, equals, right = part.rpartition("=")
            if equals:
                name = left.strip()
                if name in values:
                    raise ValueError(f"knob {name!r} is given twice in {text!r}")
                values[name] = []
            if not name:
                raise ValueError(
                    f"cannot read knobs {text!r}: expected e.g. instances=1:4,max_batch_size=1,2,4,8"
                )
            values[name] += _integers(right.strip(), name)
        return cls(tuple(Knob(name, tuple(v)) for name, v in values.items()))

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(knob.name for knob in self.knobs)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(knob.values) for knob in self.knobs)

    @cached_property
    def indices(self) -> np.ndarray:
        """(size, knobs) int: the index vector of every configuration."""
        return np.stack(np.unravel_index(np.arange(len(self)), self.shape), axis=1)

    @cached_property
    def values(self) -> np.ndarray:
        """(size, knobs) int: the knob values of every configuration."""
        columns = [np.asarray(knob.values)[self.indices[:, k]] for k, knob in enumerate(self.knobs)]
        return np.stack(columns, axis=1)

    @cached_property
    def features(self) -> np.ndarray:
        """(size, knobs) float in [0, 1]: index vectors scaled by the length of their axis."""
        return self.indices / np.maximum(1, np.asarray(self.shape) - 1)

    @cached_property
    def threads(self) -> np.ndarray:
        """(size,) int: the threads that every configuration puts to work, of all models together."""
        names = [model_and_knob(name) for name in self.names]
        total = np.zeros(len(self), dtype=int)
        for model in dict.fromkeys(model for model, _ in names):
            own = [k for k, (of, knob) in enumerate(names) if of == model and knob in THREAD_KNOBS]
            total += self.values[:, own].prod(axis=1)
        return total

    def configuration(self, number: int) -> dict[str, int]:
        """A fresh dictionary: the caller may change it."""
        if len(self) > MAX_ROWS:  # The joint grid of several models is not written out.
            index = np.unravel_index(number, self.shape)
            return {knob.name: knob.values[k] for knob, k in zip(self.knobs, index, strict=True)}
        return dict(zip(self.names, self._rows[number], strict=True))

    @cached_property
    def _rows(self) -> list[list[int]]:
        """`values`, as plain integers."""
        return self.values.tolist()

    def number(self, configuration: Configuration) -> int:
        """The number of a configuration of the grid; ValueError if it is not one."""
        _check_names(configuration, self.names)
        index = []
        for knob in self.knobs:
            value = configuration[knob.name]
            if value not in knob.values:
                raise ValueError(f"{knob.name}={value} is not on the grid {list(knob.values)}")
            index.append(knob.values.index(value))
        return int(np.ravel_multi_index(index, self.shape))

    def nearest(self, configuration: Configuration) -> int:
        """The number of the grid's configuration closest to one that may lie off the grid."""
        _check_names(configuration, self.names)
        index = [
            int(np.argmin([abs(np.log1p(v) - np.log1p(configuration[knob.name])) for v in knob.values]))
            for knob in self.knobs
        ]
        return int(np.ravel_multi_index(index, self.shape))

    def action(self, number: int) -> np.ndarray:
        """(knobs,) int64: the Gymnasium MultiDiscrete action of a configuration."""
        if len(self) > MAX_ROWS:
            return np.array(np.unravel_index(number, self.shape), dtype=np.int64)
        return self.indices[number].astype(np.int64)

    def features_of(self, number: int) -> np.ndarray:
        """(knobs,) float: the row of `features`, which need not be there for all."""
        if len(self) > MAX_ROWS:
            return np.asarray(self.action(number) / np.maximum(1, np.asarray(self.shape) - 1))
        return self.features[number]

    def number_of_action(self, action: np.ndarray) -> int:
        """The number of the configuration of an action; ValueError for what is no action of the space."""
        try:
            index = tuple(int(each) for each in action)
            if index == tuple(action):
                return int(np.ravel_multi_index(index, self.shape))
        except (TypeError, ValueError, OverflowError):
            pass
        raise ValueError(self._no_action(action))

    def numbers_of_actions(self, actions: np.ndarray) -> np.ndarray:
        """(n,) the numbers of n actions, (n, knobs); ValueError for what are no actions of the space."""
        given = np.asarray(actions)
        if given.ndim == 2 and given.shape[1] == len(self.shape) and given.dtype.kind in "biuf":
            inside = (given >= 0) & (given < self.shape)
            if inside.all() and (given == given.astype(np.int64)).all():
                return np.ravel_multi_index(tuple(given.astype(np.int64).T), self.shape)
        raise ValueError(f"give a row for each environment; {self._no_action(actions)}")

    def _no_action(self, given: object) -> str:
        shown = " ".join(repr(given).split())[:200]
        ends = ", ".join(f"{knob.name} 0 to {len(knob.values) - 1}" for knob in self.knobs)
        return f"an action holds the whole number of each knob's value ({ends}), got {shown}"

    def distances(self, number: int) -> np.ndarray:
        """(size,) float: Euclidean distance of every configuration from this one, in index space."""
        return np.linalg.norm(self.indices - self.indices[number], axis=1)

    def region(self, number: int, radius: float) -> np.ndarray:
        """The numbers of the configurations within `radius` (δ) of this one, itself included."""
        return np.flatnonzero(self.distances(number) <= radius + 1e-9)

    def to_json(self) -> dict[str, list[int]]:
        return {knob.name: list(knob.values) for knob in self.knobs}

    def __str__(self) -> str:
        return ",".join(f"{knob.name}={','.join(map(str, knob.values))}" for knob in self.knobs)


def _check_names(configuration: Configuration, names: tuple[str, ...]) -> None:
    if not isinstance(configuration, Mapping):
        raise ValueError(
            f"a configuration is a dictionary with a value for each of {', '.join(names)}, "
            f"got {configuration!r}"
        )
    if set(configuration) != set(names):
        got = ", ".join(map(str, configuration)) or "none"
        raise ValueError(f"expected a value for each of {', '.join(names)}, got {got}")


def _integers(text: str, name: str) -> list[int]:
    first, colon, last = text.partition(":")
    try:
        if not colon:
            return [int(first)]
        low, high = int(first), int(last)
    except ValueError:
        raise ValueError(
            f"knob {name!r}: cannot read {text!r}; expected an integer or a range like 1:4"
        ) from None
    if high < low or high - low > 10_000:
        raise ValueError(f"knob {name!r}: the range {text!r} must ascend and span at most 10000 values")
    return list(range(low, high + 1))


def with_values(space: ConfigurationSpace, start: Configuration) -> ConfigurationSpace:
    """The grid with the values of a configuration added to it."""
    values = {knob.name: {*knob.values, start.get(knob.name, knob.values[0])} for knob in space.knobs}
    return ConfigurationSpace.of(**{name: sorted(v) for name, v in values.items()})


def with_fixed(space: ConfigurationSpace, found: Configuration) -> ConfigurationSpace:
    """The same configurations by the same numbers, with the knobs that are not tuned as they were found."""
    fixed = tuple(Knob(name, (value,)) for name, value in found.items() if name not in space.names)
    return ConfigurationSpace(space.knobs + fixed)
