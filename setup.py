"""Builds the wheel, in which `envs` and `baselines` lie below `rrl`. pyproject.toml says all else.

In the tree they are packages of their own. A wheel that installed them so would shadow folders of these names
that users have, or be shadowed by them. So it has `rrl.envs` and `rrl.baselines`, and the names that its
modules have for each other are changed as it is built:

| in the tree | in the wheel |
|---|---|
| `from envs.live import LiveServing` | `from rrl.envs.live import LiveServing` |
| `"baselines.capes:PAPER"`, a text that is a module's name | `"rrl.baselines.capes:PAPER"` |

The pages of the documentation that errors name lie in `rrl/docs` (`serving_adapter.flags.help_pages`).

`tests/test_wheel.py` looks for names that were missed. An editable install has the tree as it is, where
`rrl.envs` is another name for `envs` (`rrl.checkout_names`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

MOVED = ("envs", "baselines")
IS_EDITABLE = "editable_wheel" in sys.argv

OWN = rf"(?:{'|'.join(MOVED)})\b"
IMPORT = re.compile(rf"^(\s*from )({OWN}[\w.]* import )", re.MULTILINE)
TEXT = re.compile(rf"""(["'])({OWN}[.:][\w/.:-]+\1)""")


class BuildRenamed(build_py):
    """Copies packages and pages, then changes the names in the copies. An editable build copies nothing."""

    def run(self) -> None:
        self.force = True  # What an earlier build left was changed already.
        super().run()
        if IS_EDITABLE:
            return
        for page in sorted(Path("docs").rglob("*.md")):
            copy = Path(self.build_lib, "rrl", page)
            self.mkpath(str(copy.parent))
            self.copy_file(str(page), str(copy))
        for path in map(Path, self.get_outputs(include_bytecode=False)):
            if path.suffix in (".py", ".pyi"):
                source = path.read_text(encoding="utf-8")
                path.write_text(TEXT.sub(r"\1rrl.\2", IMPORT.sub(r"\1rrl.\2", source)), encoding="utf-8")


def installed(package: str) -> str:
    """The name that a package of the tree is installed by."""
    return f"rrl.{package}" if package.partition(".")[0] in MOVED and not IS_EDITABLE else package


PACKAGES = find_packages(include=("rrl*", "serving_adapter*", *(f"{name}*" for name in MOVED)))

setup(
    packages=[installed(name) for name in PACKAGES],
    package_dir={installed(name): name.replace(".", "/") for name in PACKAGES},
    cmdclass={"build_py": BuildRenamed},
)
