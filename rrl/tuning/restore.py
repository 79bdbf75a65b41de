"""Crash safety: a state file says how a target was found, from before its first change to the clean end.

A run that is killed does not remove the file. The next start on that target finds it, sees that nobody holds
the target, and puts the found configuration back before anything else. It does so only while the same server
has what the killed run put there: everything else is its operator's, and stays. While a run holds the
target, no other run gets it: see `exclusive`, and the lease where the server has leases.
"""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from rrl.tuning.exclusive import Exclusive, HeldByAnother, alone
from rrl.tuning.state_file import PROFILER, TUNER, ServerIdentity, State, machine, names_of, path_of

MIN_LEASE_S = 60.0
DOES = {TUNER: "tunes", PROFILER: "measures"}

logger = logging.getLogger(__name__)


class TargetTaken(ValueError):
    """Another run is tuning this target."""


class RunningTarget(Protocol):
    """What is asked of the target itself."""

    def identity(self) -> ServerIdentity:
        """The server that answers there at present."""

    def is_still(self, server: ServerIdentity) -> bool:
        """True if that one answers there now. False if it was started anew, or tells nothing."""

    def lease_to(self, owner: str, duration_s: float, anew: bool = False) -> None:
        """Takes or prolongs the lease, where the server has leases; 0 s give it back.

        It fails where another tuner has it. It also does where another has had it since this one had it,
        unless it is taken `anew`.
        """


class TargetClaim(Protocol):
    """What a run asks of its claim on a target; a `RestorePoint` is one."""

    def claim(self, found: Mapping[str, int], config_pbtxt: str = "", interval_s: float = 0.0) -> None:
        """Claims the target before the first change."""

    def safe(self, best: Mapping[str, int]) -> None:
        """After an interval: the best configuration that is known."""

    def found_anew(self, theirs: Mapping[str, int]) -> None:
        """Another client has set this, and the run goes on from it."""

    def set_by_others(self, tuned: Mapping[str, int]) -> bool:
        """True if no change of this run explains that these knobs are in force."""
        ...

    def ending(self, in_force: Mapping[str, int]) -> None:
        """The last change is next."""

    def release(self) -> None:
        """At a clean end: the target is as it should be."""


@dataclass(frozen=True)
class ToRestore:
    """What is to be restored after a killed run."""

    found: dict[str, int]
    best: dict[str, int]  # the best the killed run knew
    config_pbtxt: str = ""  # the target's whole configuration as found
    owner: str = field(default="", compare=False)  # of the lease that the killed run may still have
    state: State | None = field(default=None, compare=False, repr=False)

    def why_not(self, in_force: Mapping[str, int], server: ServerIdentity) -> str:
        """Why what is in force is not the killed run's doing, so that it must stay; empty if it is."""
        if self.state is None:
            return ""
        if server.is_another_than(self.state.server):
            return "the server was started anew since"
        if not self.state.may_have_put(dict(in_force)):
            return "what is in force is not what it had put there"
        return ""

    def may_be_changing(self, server: ServerIdentity) -> bool:
        """True if the server may go on with a change of the killed run, and put something else in force."""
        if self.state is None or server.is_another_than(self.state.server):
            return False
        return any(after != self.found for _, after in self.state.changes)


class RestorePoint:
    """The claim of one run on one target's model."""

    def __init__(
        self, target: str, model: str, running: RunningTarget | None = None, program: str = TUNER
    ) -> None:
        self.target = target
        self.model = model
        self._names = names_of(target)
        self.path = path_of(self._names, target, model)
        self._running, self._program, self._lease_s = running, program, MIN_LEASE_S
        names = [f"{name}/{model}" for name in self._names]
        self._right = Exclusive(self.path.with_suffix(".lock"), names)
        self._state: State | None = None

    def to_restore(self) -> ToRestore | None:
        """What is to be restored after a dead run, if anything; TargetTaken if another run has the target."""
        try:
            with alone(self.path.parent):
                return self._to_restore()
        except OSError as error:
            if not self.path.exists():  # nothing could ever be written there
                return None
            raise self._cannot_write(error) from None

    @contextmanager
    def lease_of(self, killed: ToRestore) -> Iterator[None]:
        """Keeps others off while a killed run is cleared up after, by the lease that it may still have."""
        owner = killed.owner or _owner(self._program)
        self._lease(owner, MIN_LEASE_S)
        try:
            yield
        finally:
            self._lease(owner, 0.0)

    def restoring(self, before: Mapping[str, int], found: Mapping[str, int]) -> None:
        """What a dead run had found is about to be put back. A kill from here on may leave it half made."""
        change = (dict(before), dict(found))
        with alone(self.path.parent):
            left = self._to_restore()  # not what another run has claimed meanwhile
            state = None if left is None else left.state
            if state is None or change in map(tuple, state.changes):
                return
            with suppress(OSError):  # On a full disk what was found must be put back all the same.
                replace(state, changes=(*state.changes, change)).write(self.path)

    def forget(self) -> None:
        """From now on the target is its operator's again, whatever a dead run had put in force."""
        with alone(self.path.parent):
            self._to_restore()  # not what another run has claimed meanwhile
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".lock").unlink(missing_ok=True)

    def claim(self, found: Mapping[str, int], config_pbtxt: str = "", interval_s: float = 0.0) -> None:
        """Claims the target before the first change. What a dead run had found must be in force by now."""
        server = self._server()
        state = State(
            target=self.target,
            model=self.model,
            names=self._names,
            pid=os.getpid(),
            host=socket.gethostname(),
            machine=machine(),
            owner=_owner(self._program),
            found=dict(found),
            best=dict(found),
            config_pbtxt=config_pbtxt,
            changes=((dict(found), dict(found)),),
            server_name=server.name,
            server_started_s=server.started_s,
        )
        try:
            with alone(self.path.parent):  # of two that start at once, the second sees the first's claim
                self._to_restore()
                self._right.take()
                state.write(self.path)
        except HeldByAnother:
            raise self._taken(None) from None
        except OSError as error:
            self._right.release()
            raise self._cannot_write(error) from None
        self._state = state
        self._lease_s = max(MIN_LEASE_S, 3 * interval_s)
        try:
            self._prolong()
        except BaseException:
            self.release()
            raise

    def changing(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """The target is about to be changed. A kill from here on leaves one of the two in force.

        The lease comes first: a change that another tuner forbids must not be noted as made.
        """
        if self._state is None:
            return
        self._prolong()
        earlier = self._state.changes[-1:]
        went_through = bool(earlier) and earlier[0][1] == dict(before)
        change = (dict(before), dict(after))
        name, started_s = self._server()
        self._state = replace(
            self._state,
            changes=(change,) if went_through else (*earlier, change),
            server_name=name,
            server_started_s=started_s,
        )
        # On a full disk the journal ends the run at its next line, and the change back must still be made.
        with suppress(OSError):
            self._write()

    def found_anew(self, theirs: Mapping[str, int]) -> None:
        """Another client has set this, and the run goes on from it: a killed run leaves it."""
        if self._state is None:
            return
        found = {**self._state.found, **theirs}
        self._state = replace(self._state, found=found, best=found, changes=((found, found),))
        with suppress(OSError):  # as above
            self._write()

    def set_by_others(self, tuned: Mapping[str, int]) -> bool:
        """True if no change of this run explains that these knobs are in force.

        What a server that was started anew has is nobody's choice.
        """
        state = self._state
        if state is None or self._running is None or state.may_have_put_knobs(tuned):
            return False
        return self._running.is_still(state.server)

    def safe(self, best: Mapping[str, int]) -> None:
        """After an interval: the best configuration that is known."""
        if self._state is None:
            return
        if self._state.best != dict(best):
            self._state = replace(self._state, best=dict(best))
            self._write()

    def ending(self, in_force: Mapping[str, int]) -> None:
        """The last change is next. Where another tuner had the target since, only what is still its own is.

        What that one left in force, if it is not what this run had put there, stays: the change fails.
        """
        if self._state is not None and self._state.may_have_put(dict(in_force)):
            self._lease(self._state.owner, self._lease_s, anew=True)

    def release(self) -> None:
        """At a clean end: the target is as it should be."""
        if self._state is None:
            return
        with suppress(Exception):  # it ends by itself, and the target may be away
            self._lease(self._state.owner, 0.0)
        try:
            with alone(self.path.parent):
                if self._is_own():
                    self.path.unlink(missing_ok=True)
                self._right.release(leave_file=self.path.exists())
        except OSError as error:
            self._right.release(leave_file=True)
            stays = "remove it by hand, or the next rrl-tune on this target takes this run for a killed one"
            logger.warning("%s cannot be removed (%s): %s", self.path, error.strerror, stays)
        self._state = None

    def _write(self) -> None:
        assert self._state is not None
        with alone(self.path.parent):
            if self._is_own():
                self._state.write(self.path)

    def _is_own(self) -> bool:
        """False if somebody removed or spoilt the file, whether or not another run has claimed since."""
        try:
            state = State.read(self.path)
        except (OSError, ValueError):
            return False
        return state is not None and self._state is not None and state.owner == self._state.owner

    def _prolong(self) -> None:
        if self._state is not None:
            self._lease(self._state.owner, self._lease_s)

    def _lease(self, owner: str, duration_s: float, anew: bool = False) -> None:
        if self._running is not None:
            self._running.lease_to(owner, duration_s, anew)

    def _server(self) -> ServerIdentity:
        return ServerIdentity() if self._running is None else self._running.identity()

    def _to_restore(self) -> ToRestore | None:
        state = self._read()
        if self._right.is_held():
            raise self._taken(state)
        if state is None:
            return None
        if state.machine not in ("", machine()):
            raise TargetTaken(
                f"an {state.program} on {state.host} (pid {state.pid}) {DOES[state.program]} {self.model} "
                f"on {self.target}, "
                "or was killed there: wait for it to end, or start one there, which puts back what was "
                f"found. If {state.host} is gone, put the target right by hand and remove {self.path}"
            )
        return ToRestore(state.found, state.best, state.config_pbtxt, state.owner, state)

    def _taken(self, state: State | None) -> TargetTaken:
        who = "another rrl-tune or rrl-profile changes"
        if state is not None:
            another = "another" if state.program == self._program else "an"
            elsewhere = "" if state.host == socket.gethostname() else f" on {state.host}"
            who = f"{another} {state.program} (pid {state.pid}{elsewhere}) {DOES[state.program]}"
        return TargetTaken(
            f"{who} {self.model} on {self.target}; wait for it to end, or stop it with Ctrl-C or kill"
        )

    def _cannot_write(self, error: OSError) -> ValueError:
        return ValueError(
            f"cannot write {self.path} ({error.strerror}), which keeps how the target was found; "
            "set XDG_STATE_HOME to a folder of this machine that can be written"
        )

    def _read(self) -> State | None:
        try:
            return State.read(self.path)
        except ValueError:
            raise ValueError(
                f"{self.path} does not say how {self.target} was found: put the target's configuration "
                "right by hand, then remove this file"
            ) from None


def _owner(program: str) -> str:
    """One line that says who changes a target, the program first, and is nobody else's."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = f"user {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    text = f"{program} of {user} on {socket.gethostname()} (pid {os.getpid()}, {secrets.token_hex(4)})"
    return "".join(c for c in text if c.isprintable())[-200:]
