"""Which kind of target an address names: by its scheme, found by the entry point group `rrl_tune.targets`.

| address | target |
|---|---|
| `HOST:PORT`, `unix:PATH`, `grpc://HOST:PORT` | a server of the Open Inference Protocol: ours, a Triton |
| `SCHEME://...` | of the package that has an entry point of this name; refused where there is none |

A package names its own in its pyproject.toml, and nothing of it is imported until its scheme is used:

    [project.entry-points."rrl_tune.targets"]
    my-server = "my_package.targets:MyTarget"

The class is made with the keywords of `open_target`, and ignores or refuses what it has no use for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from serving_adapter.address import scheme_of
from serving_adapter.target.error import TargetError
from serving_adapter.target.target import Target

GROUP = "rrl_tune.targets"


def open_target(
    address: str,
    model: str | None = None,
    metrics_url: str | None = None,
    control_key: str | None = None,
    tls_ca: str | None = None,
) -> Target:
    """The target at an address, not connected yet; TargetError for an address that no target can have."""
    make: Callable[..., Target] = target_class(address)
    return make(address, model=model, metrics_url=metrics_url, control_key=control_key, tls_ca=tls_ca)


def target_class(address: str) -> type[Target]:
    """Whose targets have such an address; TargetError for an unknown scheme, or a package that is broken."""
    scheme = scheme_of(address)[0].removesuffix("://")
    if not scheme:
        from serving_adapter.target.open_inference.open_inference_target import OpenInferenceTarget

        return OpenInferenceTarget
    found = _entry_point(scheme)
    try:
        loaded: type[Target] = found.load()
    except (ImportError, AttributeError) as error:
        package = "" if found.dist is None else f" of {found.dist.name} {found.dist.version}"
        raise TargetError(f"the targets{package} for {address} cannot be loaded: {error}") from None
    return loaded


def _entry_point(scheme: str) -> EntryPoint:
    """Of two packages with one scheme, the first that is found; TargetError where there is none."""
    installed = entry_points(group=GROUP)
    found = next((entry for entry in installed if entry.name == scheme), None)
    if found is None:
        known = ", ".join(sorted(installed.names)) or "none"
        raise TargetError(
            f"no installed package has targets of the scheme {scheme!r}; installed: {known}; "
            "give HOST:PORT for a server of the Open Inference Protocol, or install the package"
        )
    return found
