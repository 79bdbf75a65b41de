"""A model's configuration as it was once read, to be edited without its server."""

from __future__ import annotations

from serving_adapter.knob_limits import Configuration
from serving_adapter.model_configuration import as_pbtxt, edited, parse_pbtxt
from serving_adapter.target.open_inference.config_files import files_of
from serving_adapter.target.open_inference.joint_configuration import JointConfiguration, split


class KeptConfiguration:
    """Answers as an `OpenInferenceTarget` does, from the text of the `config.pbtxt` that one told."""

    def __init__(self, pbtxt: str) -> None:
        """ValueError, in one sentence, for what is no such text."""
        self._config = parse_pbtxt(pbtxt)

    def config_text(self, configuration: Configuration | None = None) -> str:
        """The text of the `config.pbtxt` with these knobs set; without any, as it was."""
        return as_pbtxt(edited(self._config, configuration or {}))

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        """That text, and the ModelConfig as JSON: what a server loads as an override."""
        return files_of(edited(self._config, configuration))


def kept_configuration(text: str) -> KeptConfiguration | JointConfiguration:
    """What the text of one model or of several keeps; ValueError, in one sentence, for what is none."""
    texts = split(text)
    if not texts:
        return KeptConfiguration(text)
    return JointConfiguration({name: KeptConfiguration(text) for name, text in texts.items()})
