"""The configuration that `serve deploy` takes, as it is in force or with some knobs set.

A PUT replaces the configuration of all declarative applications, and deletes those that it leaves out. So
what is sent is always what the dashboard told just before, with the fields of one deployment edited.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from serving_adapter.knob_limits import Configuration, check
from serving_adapter.target.error import TargetError
from serving_adapter.target.ray_serve.deployed import (
    DECLARATIVE,
    DELETING,
    LIMITS,
    Deployed,
    as_config,
    name_of,
)
from serving_adapter.yaml_text import yaml_of

FILE_NAME = "serve_config.yaml"
_TUNED = "# rrl-tune tunes the deployment "  # before its label, in the first line of the file
_OF_THE_CLUSTER = ("proxy_location", "http_options", "grpc_options", "target_capacity")
_RESTORES = "restores_unset_config_options"  # told by a Ray that goes back to the code's value then


def in_force(told: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration in force, as a PUT takes it; TargetError where a part of it is not told."""
    config: dict[str, Any] = {
        field: copy.deepcopy(told[field]) for field in _OF_THE_CLUSTER if told.get(field) is not None
    }
    config["applications"] = applications = []
    for name, app in told["applications"].items():
        if app.get("source") != DECLARATIVE or app.get("status") == DELETING:
            continue  # what serve.run deployed stays as it is
        if not app.get("deployed_app_config"):
            raise TargetError(
                f"Ray does not tell the configuration of the application {name!r}, which a change would "
                "delete then: wait until it is deployed"
            )
        applications.append(copy.deepcopy(app["deployed_app_config"]))
    return config


class FoundOverrides:
    """What the submitted configuration said of a deployment when it was found, and which knobs were in force.

    A field that was left to the code is left to it again once its knobs have the values found.
    """

    def __init__(self, deployed: Deployed) -> None:
        self._values = deployed.values()
        self._override = dict(deployed.override)
        self._effective = dict(deployed.effective)

    def take_away(self, entry: dict[str, Any], deployed: Deployed, wanted: Configuration) -> bool:
        """Takes such fields out of the entry. True if nothing but a name is left that was not there."""
        for field in {home.field for home in deployed.homes.values()} & entry.keys():
            knobs = [knob for knob, home in deployed.homes.items() if home.field == field]
            as_found = all(wanted[knob] == self._values.get(knob) for knob in knobs)
            if as_found and field not in self._override and entry[field] == self._effective.get(field):
                del entry[field]
        return not self._override and entry.keys() == {"name"}


def edited(
    deployed: Deployed, configuration: Configuration, found: FoundOverrides | None = None
) -> dict[str, Any]:
    """The whole configuration with these knobs of the deployment set, as a PUT takes it.

    TargetError for a value that no such knob can have.
    """
    present = deployed.values()
    wanted = present | dict(configuration)
    try:
        check({knob: value for knob, value in wanted.items() if present.get(knob) != value}, LIMITS)
    except ValueError as error:
        raise TargetError(f"cannot configure {deployed.label}: {error}") from None
    config = in_force(deployed.told)
    entries, entry = _entry(config, deployed)
    for knob, value in wanted.items():
        if present[knob] != value:
            _set(entry, deployed, knob, value)
    if found is not None and deployed.told.get(_RESTORES) and found.take_away(entry, deployed, wanted):
        entries.remove(entry)
    return config


def with_override(deployed: Deployed, override: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration with this said of the deployment, as a PUT takes it; empty: nothing is said."""
    config = in_force(deployed.told)
    entries, entry = _entry(config, deployed)
    at = entries.index(entry)
    entries[at : at + 1] = [copy.deepcopy(dict(override))] if override else []
    return config


def as_yaml(deployed: Deployed, configuration: Configuration | None = None) -> str:
    """The text of the file that `serve deploy` takes, in which every knob of the deployment stands."""
    wanted = deployed.values() | dict(configuration or {})
    config = in_force(deployed.told)
    _, entry = _entry(config, deployed)
    for knob, value in wanted.items():
        _set(entry, deployed, knob, value)
    return _text(deployed.label, config)


class KeptApplication:
    """Answers for the files of a target that is away, from the text that it once told."""

    def __init__(self, text: str) -> None:
        """ValueError, in one sentence, for what is no such text."""
        first, _, rest = text.partition("\n")
        label = first.removeprefix(_TUNED)
        application, _, deployment = label.rpartition("#")
        if label == first:
            raise ValueError("this is not a configuration of Ray Serve as rrl-tune writes it")
        try:
            config = yaml_of(rest)
            apps = {name_of(app): _as_told(app) for app in config["applications"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no configuration of Ray Serve: {error!r}") from None
        self._deployed = Deployed(config | {"applications": apps}, application, deployment)
        if application not in apps or not self._deployed.effective:
            raise ValueError(f"this configuration of Ray Serve has no deployment {label!r}")

    def config_text(self, configuration: Configuration | None = None) -> str:
        return as_yaml(self._deployed, configuration)

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        return {FILE_NAME: self.config_text(configuration)}


def _as_told(app: dict[str, Any]) -> dict[str, Any]:
    """An application in a file as the dashboard tells it, as far as the file knows."""
    entries = {entry["name"]: {"deployment_config": entry} for entry in app.get("deployments", [])}
    return {"source": DECLARATIVE, "deployed_app_config": app, "deployments": entries}


def _entry(config: dict[str, Any], deployed: Deployed) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All entries of the application, and the deployment's, made where it has none."""
    app = next(each for each in config["applications"] if name_of(each) == deployed.application)
    entries: list[dict[str, Any]] = app.setdefault("deployments", [])
    for entry in entries:
        if entry.get("name") == deployed.deployment:
            return entries, entry
    entries.append({"name": deployed.deployment})
    return entries, entries[-1]


def _set(entry: dict[str, Any], deployed: Deployed, knob: str, value: int) -> None:
    home = deployed.homes[knob]
    if not home.key:
        entry[home.field] = value
        return
    if home.field not in entry:  # An override replaces all that the code says of the field.
        entry[home.field] = copy.deepcopy(dict(deployed.effective.get(home.field) or {}))
    entry[home.field][home.key] = as_config(knob, value)


def _text(label: str, config: dict[str, Any]) -> str:
    return f"{_TUNED}{label}\n{yaml.safe_dump(config, sort_keys=False, default_flow_style=False)}"
