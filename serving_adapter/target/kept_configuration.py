"""A model's configuration as it was once read, to be edited without its server."""

from __future__ import annotations

from serving_adapter.model_configuration import Configuration, as_json, as_pbtxt, edited, parse_pbtxt


class KeptConfiguration:
    """Answers as a `Target` does, from the text of the `config.pbtxt` that one told."""

    def __init__(self, pbtxt: str) -> None:
        """ValueError, in one sentence, for what is no such text."""
        self._config = parse_pbtxt(pbtxt)

    def model_config(self, configuration: Configuration) -> str:
        """The ModelConfig as JSON with these knobs set: what a server loads as an override."""
        return as_json(edited(self._config, configuration))

    def config_pbtxt(self, configuration: Configuration | None = None) -> str:
        """The text of the `config.pbtxt` with these knobs set; without any, as it was."""
        return as_pbtxt(edited(self._config, configuration or {}))
