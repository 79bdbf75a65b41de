"""The target interface: whatever is tuned, as a run sees it.

A target is one model of a running server, or several that are tuned together. Six methods make one:
`connect`, `close`, `knobs`, `configuration`, `apply`, `read`. What else it may tell or do has an answer here
for those that cannot. Every failure is a `TargetError` of one sentence.

A package names its targets by the scheme of their addresses in its pyproject.toml (`installed_targets`), and
tries them with `serving_adapter.target.testing`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from serving_adapter.knob_limits import Configuration, Limits
from serving_adapter.target.configuration_files import ConfigurationFiles
from serving_adapter.target.lease import TunerLease
from serving_adapter.target.reading import Reading

BeforeChange = Callable[[dict[str, int], dict[str, int]], None]
"""Told of the knobs in force, and of those that will be, just before a change is made."""


class Applied(NamedTuple):
    """How a configuration came into force."""

    in_place: bool  # no process was started but new instances
    cold_instances: int  # processes whose first requests are slow
    changed: bool = True  # False: it was in force already
    replaced: Configuration = MappingProxyType({})  # the knobs in force before, of those that it names
    models: Mapping[str, Applied] = MappingProxyType({})  # of each model, where several are changed together


class Room(NamedTuple):
    """What fits on the nodes of a cluster."""

    instances: int  # at most
    threads: int  # of one of them: as many as the largest node has CPUs


class Target(ABC):
    """`connect()` first. It may be connected anew at any time, after it was lost above all."""

    is_local = False  # it runs on this machine, whose processors are its own
    server = ""  # its name and version, once connected
    cores: int | None = None  # that its server may use, if that is known
    tells_gpus = False  # how busy its GPUs are
    started_s: float | None = None  # when the server started, by its clock, if it tells

    def __init__(self, address: str, model: str = "") -> None:
        self.address, self.model = address, model  # as they are told to users
        self.before_change: BeforeChange = lambda before, after: None  # `apply` calls it before a change
        self.notes: list[str] = []  # what the target cannot tell, one sentence each, to be said once
        self.calls: Counter[str] = Counter()  # what it was asked, by kind

    # --- what a target is --------------------------------------------------------------------------

    @abstractmethod
    def connect(self, control: bool = True, counters: bool = True) -> None:
        """Finds the server and the model; with `control`, makes sure that it may be changed. Changes nothing.

        TargetLost where it had been connected before and does not answer, TargetError for all else. Without
        `counters` nothing will be read, and what tells them may be away.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back what a connection holds; once more does no harm."""

    @abstractmethod
    def knobs(self) -> Mapping[str, Limits]:
        """The knobs that the model has, and the limits of each."""

    @abstractmethod
    def configuration(self) -> dict[str, int]:
        """The configuration in force; empty where the server does not tell."""

    @abstractmethod
    def apply(self, configuration: Configuration) -> Applied:
        """Puts these knobs in force, the others as they are; returns when the server is ready with them.

        What is in force already is not sent. If the change fails, the configuration before it is put back,
        verified, and the error raised: NotPutBack where that failed too, LostInChange where the server does
        not answer any more, NoSuchKnob for a knob that the model has not. Overtaken where another client set
        another configuration meanwhile, which stays.
        """

    @abstractmethod
    def read(self) -> Reading:
        """All counters of the model, now."""

    # --- what it may also do -----------------------------------------------------------------------

    def restore(self, found: Configuration, text: str = "") -> Applied:
        """Puts back what an earlier run found: its knobs, and what they bring with them in that text.

        That run may have been killed in a change, which must not come into force afterwards.
        """
        if text:
            self.was_found_as(text)
        return self.apply(found)

    def was_found_as(self, text: str) -> None:
        """An earlier run found it so: what `config_text` told then is what later changes go back to."""

    @property
    def in_place_knobs(self) -> frozenset[str]:
        """The knobs that change without a restart of what serves."""
        return frozenset()

    @property
    def glance_is_cheap(self) -> bool:
        """True if a glance costs next to nothing, so that it may be taken in every interval."""
        return False

    def glance(self) -> Reading:
        """Arrivals, completions, failures and backlog at least: the cheapest question, to poll with."""
        return self.read()

    def check_control(self) -> None:
        """TargetError if the server does not let itself be changed. Nothing is changed by the question."""

    def why_not_tunable(self) -> str:
        """Says in one sentence why the model cannot be tuned; empty if its configuration allows it."""
        return ""

    def room(self) -> Room | None:
        """What fits on the nodes that it may use, as they are now; None where it is on no cluster."""
        return None

    def requests_hold_several_items(self) -> bool:
        """True if requests were seen that a smaller max_batch_size may refuse."""
        return False

    def refuses_more_than_found(self, configuration: Configuration) -> str:
        """Says in one sentence that more requests are refused than before; empty if none are."""
        return ""

    # --- its configuration as files ----------------------------------------------------------------

    def config_text(self, configuration: Configuration | None = None) -> str:
        """The server's own configuration file with these knobs set; without any, as it is in force."""
        return ""

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        """What takes these knobs home: texts of files by their names, that of `config_text` first."""
        return {}

    @staticmethod
    def kept(text: str) -> ConfigurationFiles | None:
        """What `config_text` once told, to be edited without the server; None where that cannot be.

        ValueError, in one sentence, for a text that is none of its own.
        """
        return None

    # --- keeping others off ------------------------------------------------------------------------

    def take_lease(self, lease: TunerLease) -> bool:
        """Keeps other tuners off the model for so long; false where the server has no leases."""
        return False

    def prolong_lease(self) -> None:
        """Prolongs the lease that was taken; LeaseTaken or LeaseLost where another tuner has it."""

    def forget_lease(self) -> None:
        """What other tuners did is known: a lease that is taken from now on begins anew."""
