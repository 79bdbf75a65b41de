"""A server's configuration as the files that it is kept in."""

from __future__ import annotations

from typing import Protocol

from serving_adapter.knob_limits import Configuration


class ConfigurationFiles(Protocol):
    """A target tells them, and so does what is known of one that is away."""

    def config_text(self, configuration: Configuration | None = None) -> str:
        """The server's own configuration file with these knobs set; without any, as it is in force."""

    def config_files(self, configuration: Configuration) -> dict[str, str]:
        """What takes these knobs home: texts of files by their names, that of `config_text` first."""
