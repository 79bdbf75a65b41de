"""A change of a deployment's configuration: sent, waited for, verified; or the one before is put back.

A replica whose `reconfigure` refuses a user_config is ended by Ray, and another started with the same one,
many times over. So the first such failure is taken for the answer, while other replicas still serve. While
the configuration from before is put back, a replica with the refused one may still fail, which says nothing.

A replica that is lost with its node says nothing of a configuration either: Ray starts another one elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from serving_adapter.knob_limits import in_words
from serving_adapter.target.error import (
    LostInChange,
    ModelAbsent,
    NotPutBack,
    Overtaken,
    TargetError,
    TargetLost,
)
from serving_adapter.target.ray_serve.dashboard import Dashboard, last_line
from serving_adapter.target.ray_serve.deployed import Deployed, override_in
from serving_adapter.target.ray_serve.edited_config import with_override

TIMEOUT_S = 300.0  # a replica that loads a large model takes minutes
POLL_S = 0.2
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
_LOST_REPLICA = "HEALTH_CHECK_FAILED"  # why it has failed then, until another replica runs
_REFUSED_BY_REPLICA = "A replica failed to start"  # how Ray's message begins while it tries again
_NO_PLACE = "to be scheduled"  # and what it says of replicas that find no place for 30 s


def put_in_force(
    dashboard: Dashboard, before: Deployed, config: dict[str, Any], wanted: Mapping[str, int]
) -> Deployed:
    """Returns the deployment once all replicas run with the knobs wanted, which `config` sets.

    A change that fails raises TargetError, with the configuration from before in force, verified. NotPutBack
    if it is not; LostInChange if the dashboard does not answer any more. Overtaken where another client has
    configured the deployment meanwhile: that stays.
    """
    is_taken = False
    try:
        dashboard.put_applications(config)
        is_taken = True
        return wait_until_in_force(dashboard, before, wanted)
    except ModelAbsent:  # Whoever deleted it while it was changed wants it so.
        raise
    except TargetError as error:
        _check_lives(dashboard, wanted)
        sent = override_in(config, before.application, before.deployment)
        may_still_come = isinstance(error, TargetLost)
        if why_not := _put_back(dashboard, before, sent, is_taken, may_still_come):
            _check_lives(dashboard, wanted)
            raise NotPutBack(
                f"{error} (the previous configuration could not be put back: {why_not}; deploy "
                f"{before.label!r} yourself)"
            ) from None
        raise TargetError(f"{error} (the previous configuration is in force)") from None


def wait_until_in_force(
    dashboard: Dashboard, deployed: Deployed, wanted: Mapping[str, int], puts_back: bool = False
) -> Deployed:
    """The deployment, once all of its replicas run with these knobs; TargetError if that fails."""
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        now = replace(deployed, told=dashboard.applications())
        if why := _why_failed(now) or ("" if puts_back else _why_failing(now, wanted)):
            changes = {k: v for k, v in wanted.items() if deployed.values().get(k) != v} or wanted
            raise TargetError(f"{dashboard.address} cannot run {now.label} with {in_words(changes)}: {why}")
        if now.in_force():
            _check_values(now, wanted, dashboard.address)
            return now
        if time.monotonic() > end_s:
            said = last_line(str(now.state.get("message", ""))) or now.app.get("status")
            raise TargetError(f"{now.label} is not in force {TIMEOUT_S:g} s after it was configured: {said}")
        time.sleep(POLL_S)


def _why_failed(now: Deployed) -> str:
    """Empty unless Ray has given up. An application is on its way until it has taken its configuration."""
    if now.state.get("status_trigger") == _LOST_REPLICA:
        return ""
    status, message = now.state.get("status"), str(now.state.get("message", ""))
    if now.app.get("status") in _FAILED and (not now.state or status in _FAILED):
        return last_line(message or str(now.app.get("message", ""))) or str(status)
    return ""


def _why_failing(now: Deployed, wanted: Mapping[str, int]) -> str:
    """Empty while it may still come. What Ray says before it has taken these knobs is of others."""
    message = str(now.state.get("message", "")) if now.values() == wanted else ""
    if message.startswith(_REFUSED_BY_REPLICA):
        return last_line(message)
    return "its replicas find no place on the cluster's nodes" if _NO_PLACE in message else ""


def _check_values(now: Deployed, wanted: Mapping[str, int], address: str) -> None:
    has = now.values()
    wrong = [f"{k}={has.get(k)} instead of {value}" for k, value in wanted.items() if has.get(k) != value]
    if wrong:
        raise TargetError(f"{address} accepted a configuration but reports {', '.join(wrong)}")


def _check_lives(dashboard: Dashboard, wanted: Mapping[str, int]) -> None:
    try:
        dashboard.applications()
    except TargetLost as lost:
        raise LostInChange(f"{lost} in the middle of a change to {in_words(wanted)}") from None


def _put_back(
    dashboard: Dashboard, before: Deployed, sent: Mapping[str, Any], is_taken: bool, may_still_come: bool
) -> str:
    """Sets the deployment back to what it had before a failed change. Returns why it is not so, or "".

    All else stays as it is told by then: others may have deployed applications since. Nothing is sent where
    the deployment is set as before, unless what was `sent` `may_still_come`. Where Ray has not taken that, no
    replica has changed.
    """
    try:
        now = replace(before, told=dashboard.applications())
        is_set_back = now.override == before.override and not may_still_come
        if is_set_back and not is_taken:
            return ""
        if now.override not in (before.override, sent):
            raise Overtaken(
                f"another client configured {now.label} at {dashboard.address} while it was changed, with "
                f"{in_words(now.values())}, which stays so"
            )
        if not is_set_back:
            with suppress(TargetError):  # where it is not taken, what is in force decides
                dashboard.put_applications(with_override(now, before.override))
        wait_until_in_force(dashboard, before, before.values(), puts_back=True)
    except (ModelAbsent, Overtaken):
        raise
    except TargetError as error:
        return str(error)
    return ""
