"""In a checkout `rrl.envs` and `rrl.baselines`, as a wheel names these packages, are `envs` and `baselines`.

So code that is written with the longer names runs with either. `import rrl` installs the finder where the
packages lie beside it. Until one of the names is imported, it costs one comparison an import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parent.parent
PREFIX = "rrl."
BESIDE = ("rrl.envs.", "rrl.baselines.")


class SameModule(Loader):
    """Loads a module by its name in the checkout."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self._spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # The import has put that of the longer name there.


class CheckoutNames:
    """Finds the modules that have two names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None where there is no such module; ImportError where another one would be taken for it."""
        if not f"{fullname}.".startswith(BESIDE):
            return None
        name = fullname.removeprefix(PREFIX)
        own = find_spec(name)
        if own is None:
            return None
        if own.origin is not None and not Path(own.origin).resolve().is_relative_to(CHECKOUT):
            raise ImportError(
                f"{own.origin} is found in place of {CHECKOUT}'s {name}: start where it is not, or "
                "install a wheel, which needs neither of these names (docs/how-to/install.md)"
            )
        is_package = own.submodule_search_locations is not None
        return ModuleSpec(fullname, SameModule(own), origin=own.origin, is_package=is_package)


def install() -> None:
    """Puts the finder before the others."""
    sys.meta_path.insert(0, CheckoutNames())
