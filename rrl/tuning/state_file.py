"""The state file of a run: how its target was found, and what the run put in force there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from rrl.folder_sync import sync_folder
from serving_adapter.address import LOCALHOST, ServerAddress, canonical, scheme_of
from serving_adapter.whole_files import written_whole

TUNER, PROFILER = "rrl-tune", "rrl-profile"  # the programs that claim targets
IN_STEPS = "instances"  # the one knob that a change moves in steps
BY_ONE_MORE = "max_queue_delay_us"  # It has one more on the way where Triton is to reload a model.


class ServerIdentity(NamedTuple):
    """What tells a server from another one at the same address, as far as it says."""

    name: str = ""  # with its version
    started_s: float | None = None  # by its own clock

    def is_another_than(self, other: ServerIdentity) -> bool:
        if self.name and other.name and self.name != other.name:
            return True
        if self.started_s is None or other.started_s is None:
            return False
        return abs(self.started_s - other.started_s) > 1.0


@dataclass(frozen=True)
class State:
    target: str
    model: str
    names: list[str]  # all that the target goes by, this machine's own with the machine's identity
    pid: int
    host: str  # the name of the machine that its process runs on, which may change
    machine: str  # the identity of that machine; empty: not known, taken for this one
    owner: str  # of the lease on the model, where the server has leases
    found: dict[str, int]
    best: dict[str, int]
    config_pbtxt: str = ""
    changes: tuple[tuple[dict[str, int], dict[str, int]], ...] = ()
    """The last changes, each from one configuration to another. One may be half made."""
    server_name: str = ""
    server_started_s: float | None = None

    @property
    def program(self) -> str:
        """The one that claimed the target."""
        return PROFILER if self.owner.startswith(f"{PROFILER} ") else TUNER

    @property
    def server(self) -> ServerIdentity:
        return ServerIdentity(self.server_name, self.server_started_s)

    def may_have_put(self, in_force: dict[str, int]) -> bool:
        """True if the run's last change explains this configuration, made or half made."""
        return any(_on_the_way(in_force, before, after) for before, after in self.changes)

    def may_have_put_knobs(self, in_force: Mapping[str, int]) -> bool:
        """The same of some knobs, whatever the others are."""
        pairs = [[{name: each.get(name, -1) for name in in_force} for each in pair] for pair in self.changes]
        return any(_on_the_way(dict(in_force), before, after) for before, after in pairs)

    def write(self, path: Path) -> None:
        """Replaces the file, whole or not at all."""
        with written_whole(path, mode=0o600) as file:
            file.write(json.dumps(asdict(self)).encode())
        sync_folder(path.parent)

    @classmethod
    def read(cls, path: Path) -> State | None:
        """None where there is no file; ValueError for one that says something else."""
        try:
            values = dict(json.loads(path.read_text(encoding="utf-8")))
            lacking: dict[str, Any] = {
                "names": [canonical(str(values["target"]))],
                "owner": "",
                "host": "",
                "machine": "",
            }  # in files of earlier versions
            known = {field.name for field in fields(cls)}
            state = cls(**{name: value for name, value in (lacking | values).items() if name in known})
            state._check()
        except FileNotFoundError:
            return None
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is no state file: {error!r}") from error
        return state

    def _check(self) -> None:
        """ValueError or TypeError for a value of another kind than is declared above."""
        texts = (self.target, self.model, self.host, self.machine, self.owner, self.config_pbtxt)
        if not all(isinstance(text, str) for text in (*texts, self.server_name, *self.names)):
            raise TypeError("a name is no text")
        if not isinstance(self.server_started_s, int | float | None):
            raise TypeError("the server's start is no number")
        for configuration in (self.found, self.best, *(each for pair in self.changes for each in pair)):
            if not all(isinstance(value, int) for value in configuration.values()):
                raise TypeError("a knob's value is no number")
        if any(len(pair) != 2 for pair in self.changes):
            raise ValueError("a change is not from one configuration to another")


def state_folder() -> Path:
    """ValueError, in one sentence, for a user who has none, as in a container."""
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "rrl-tune"
    try:
        return Path.home() / ".local" / "state" / "rrl-tune"
    except RuntimeError:
        raise ValueError(
            "this user has no home to keep in how a target was found; set XDG_STATE_HOME to a folder of this "
            "machine that can be written"
        ) from None


def path_of(names: Sequence[str], target: str, model: str) -> Path:
    """The file of this target's model: one under any of its names, or a new one."""
    for path, state in _states():
        if state.model == model and set(state.names) & set(names):
            return path
    scheme, rest = scheme_of(canonical(target))
    key = f"{scheme}{_with_machine(rest)}/{model}"
    name = re.sub(r"[^\w.-]+", "_", f"{canonical(target)}/{model}")[:80]
    return state_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def names_of(target: str) -> list[str]:
    """All that a target goes by, so that two runs know that theirs is the same."""
    scheme, rest = scheme_of(target)
    try:
        identities = ServerAddress.parse(rest).identities()
    except ValueError:
        identities = frozenset({rest})
    return sorted(scheme + _with_machine(identity) for identity in identities)


def machine() -> str:
    """The machine's identity, which stays when it is renamed or a container starts anew; empty if unknown."""
    with suppress(OSError):
        identity = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
        if identity not in ("", "uninitialized"):
            return _digest(identity)  # which is nobody else's business
    return ""


def _states() -> Iterator[tuple[Path, State]]:
    for path in sorted(state_folder().glob("*.json")):
        with suppress(OSError, ValueError):
            state = State.read(path)
            if state is not None:
                yield path, state


def _with_machine(name: str) -> str:
    """This machine's own addresses mean another server elsewhere, and in a container with its own network."""
    own = name.startswith((f"{LOCALHOST}:", "unix"))
    return f"{name} on {_network()}" if own else name


def _network() -> str:
    """The network that this process sees. Containers that share it may each have a machine identity."""
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return _digest(f"{kernel} {os.readlink('/proc/self/ns/net')}")
    return _digest(machine() or socket.gethostname())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _on_the_way(in_force: dict[str, int], before: dict[str, int], after: dict[str, int]) -> bool:
    if in_force.keys() != before.keys() or in_force.keys() != after.keys():
        return False
    return all(_comes_by(value, name, before[name], after[name]) for name, value in in_force.items())


def _comes_by(value: int, name: str, before: int, after: int) -> bool:
    """True if a change of this knob has the value at its start, on its way or at its end."""
    if value in (before, after):
        return True
    if name == IN_STEPS:
        return min(before, after) < value < max(before, after)
    return name == BY_ONE_MORE and value == after + 1
