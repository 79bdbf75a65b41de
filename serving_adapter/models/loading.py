"""Builds the model that a reference names: of the catalogue, of the user's own code, or from a file.

    minilm                        a name of the catalogue
    my_package.my_module:factory  a callable that returns (module, [TensorSpec, ...]) or a Model
    classifier.pt2, tagger.pt     an exported file, see `exported`
    classifier.safetensors        weights of a model that the file names, see `weights_files`

Building starts no thread and runs no parallel branch, so that the process may fork afterwards.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from serving_adapter.models import CATALOGUE
from serving_adapter.models.branches import has_forks
from serving_adapter.models.exported import SUFFIXES, load_exported
from serving_adapter.models.model import Model, ModelError
from serving_adapter.models.weights_files import SUFFIX, architecture_of, put_weights
from serving_adapter.tensors import TensorSpec

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def load_model(reference: str, options: Mapping[str, str]) -> Model:
    """Builds a model on the CPU; `options` become keyword arguments of its factory.

    A worker moves the module to another device: a process that has used CUDA cannot fork.
    """
    if reference in CATALOGUE:
        return _made(reference, _factory(CATALOGUE[reference]), options)
    if Path(reference).suffix in SUFFIXES:
        if options:
            raise ModelError(f"the exported file {reference} takes no options, got {', '.join(options)}")
        return load_exported(Path(reference))
    if Path(reference).suffix == SUFFIX:
        return _from_weights_file(Path(reference), dict(options))
    if ":" in reference:
        return _made(reference, _factory(reference), options)
    raise ModelError(
        f"unknown model {reference!r}; give one of {', '.join(CATALOGUE)}, a factory of your own as "
        f"package.module:factory, or an exported file ({', '.join((*SUFFIXES, SUFFIX))})"
    )


def _from_weights_file(path: Path, given: dict[str, str]) -> Model:
    """A file may name a model of the catalogue; other code only runs if `architecture` names it."""
    name, options = architecture_of(path)
    named = given.pop("architecture", None)
    if given:
        raise ModelError(f"the weights file {path} takes no options but architecture, got {', '.join(given)}")
    if name not in CATALOGUE and name != named:
        raise ModelError(
            f"{path} is for the model {name!r}, which is not of the catalogue; its code runs only where it "
            "is named beside the file, as the deployed model"
        )
    model = _made(name, _factory(CATALOGUE.get(name, name)), options)
    put_weights(model, path)
    return model


def _factory(reference: str) -> Callable[..., Any]:
    """Imports `module:factory`, of the current directory where no installed package has that name."""
    module_name, _, factory_name = reference.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ModelError(
                f"model {reference!r}: there is no module {error.name!r} in the current directory "
                "or among the installed packages"
            ) from None
        raise ModelError(f"model {reference!r}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise ModelError(
            f"model {reference!r}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ModelError(f"model {reference!r}: the module {module_name} has no factory {factory_name!r}")
    return factory


def _made(reference: str, factory: Callable[..., Any], options: Mapping[str, str]) -> Model:
    made = factory(**_arguments(reference, factory, options))
    if isinstance(made, Model):
        return made
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        module, specs = made
        if isinstance(specs, (list, tuple)) and specs and all(isinstance(s, TensorSpec) for s in specs):
            return Model(module, tuple(specs), has_parallel_branches=has_forks(module))
    raise ModelError(
        f"model {reference!r}: the factory must return (torch.nn.Module, [TensorSpec, ...]) or a Model, "
        f"got {_form(made)}"
    )


def _form(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__


def _arguments(
    reference: str, factory: Callable[..., Any], options: Mapping[str, str]
) -> dict[str, int | float | str | bool]:
    """The options as keyword arguments, each converted as the factory annotates it."""
    parameters = inspect.signature(factory).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in known and not open_ended:
            listed = f"; it has {', '.join(known)}" if known else "; it has none"
            raise ModelError(f"model {reference!r} has no option {name!r}{listed}")
    missing = [
        name for name in known if parameters[name].default is inspect.Parameter.empty and name not in options
    ]
    if missing:
        raise ModelError(f"model {reference!r} needs the option {missing[0]!r}: add {missing[0]}=VALUE")
    hints = typing.get_type_hints(factory)
    return {name: _converted(reference, name, text, hints.get(name, str)) for name, text in options.items()}


def _converted(reference: str, name: str, text: str, annotation: Any) -> int | float | str | bool:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    try:
        if annotation is bool:
            return TRUTH[text.lower()]
        return annotation(text) if annotation in (int, float) else text
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[annotation]
        raise ModelError(f"model {reference!r}: option {name} must be {expected}, got {text!r}") from None
