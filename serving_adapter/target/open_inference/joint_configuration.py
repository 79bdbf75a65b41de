"""The configurations of several models as one, in JSON and as one text of their `config.pbtxt`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from serving_adapter.knob_limits import Configuration, by_model
from serving_adapter.target.configuration_files import ConfigurationFiles
from serving_adapter.target.open_inference.config_files import CONFIG_PBTXT, FOLDERS, MODEL_CONFIG, indented

_HEAD = re.compile(r"^# the config\.pbtxt of model (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class JointConfiguration:
    """Asks each of the models for its own. Knobs are named with their models."""

    members: Mapping[str, ConfigurationFiles]

    def config_text(self, configuration: Configuration | None = None) -> str:
        """The texts of all models, each behind a comment that names its model."""
        texts = self._texts(configuration)
        return "\n".join(f"# the config.pbtxt of model {name}\n{text}" for name, text in texts.items())

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        """That text, a JSON object with the ModelConfig of each model by its name, and each model's text."""
        parts = by_model(configuration)
        overrides = {
            name: json.loads(member.config_files(parts.get(name, {}))[MODEL_CONFIG])
            for name, member in self.members.items()
        }
        folders = {
            f"{FOLDERS}/{name}/{CONFIG_PBTXT}": text for name, text in self._texts(configuration).items()
        }
        return {
            CONFIG_PBTXT: self.config_text(configuration),
            MODEL_CONFIG: indented(overrides),
        } | folders

    def _texts(self, configuration: Configuration | None) -> dict[str, str]:
        """The texts of the models by their names."""
        parts = None if configuration is None else by_model(configuration)
        return {
            name: m.config_text(None if parts is None else parts.get(name, {})).rstrip() + "\n"
            for name, m in self.members.items()
        }


def split(text: str) -> dict[str, str]:
    """The texts of `config_text` by model; empty where the text is of one model."""
    found = list(_HEAD.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {m.group(1): text[m.end() : end].strip() + "\n" for m, end in zip(found, ends, strict=False)}
