"""Which models a server serves, and how, as its options say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from serving_adapter import resources
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.knob_limits import KNOBS, KNOBS_ON_CLUSTER, check
from serving_adapter.server import placement
from serving_adapter.server.configuration import Knobs, Priorities, Protection
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.ray_engine.launching import ask_no_system, check_ray, driver_of
from serving_adapter.server.redundancy.redundant_models import RedundantModels, parity_model
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.surroundings import THIS_MACHINE, Surroundings
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.parallelism import NodePlacement
from serving_adapter.server.workers.share import Share
from serving_adapter.tensors import UNREADABLE_ARRAYS

FILE_SUFFIXES = (".pt", ".pt2", ".ts", ".safetensors")  # a model reference with one of these is a file


def models_of(options: ServeOptions, front: int = 0) -> dict[str, ServedModel]:
    """The models that the options name, by what clients call them, none of them started.

    `front` is the number of this process among the fronts, from 0.
    """
    given = {name: getattr(options, name) for name in KNOBS}
    where = NodePlacement(options.nodes, options.placement, options.nodes_per_unit)
    # The machine of the front says nothing about the nodes, where each worker reserves one CPU.
    usual_threads = 1 if options.engine == "ray" else resources.cores()
    given["intra_op_threads"] = given["intra_op_threads"] or usual_threads
    try:
        check(given, KNOBS_ON_CLUSTER if options.engine == "ray" else KNOBS)
        placement.check(where)
    except ValueError as error:
        fail(str(error))
    surroundings = _surroundings(options, Share(front, options.fronts))
    protection = Protection(
        max_queue_size=options.max_queue_size,
        max_held_bytes=options.byte_budget / max(1, len(options.model)),
        max_answer_bytes=options.max_message_bytes,
        worker_timeout_s=options.worker_timeout_s,
    )
    resilience = ResilienceSettings(
        mode=options.resilience,
        k=options.k,
        r=options.r,
        redundant_instances=options.redundant_instances,
        late_percentile=options.late_percentile,
        late_after_us=options.late_after_us,
        group_timeout_us=options.group_timeout_us,
        overflow=options.overflow,
    )
    redundant_models = _redundant_models(options)
    _check_owners(options)
    models = {}
    for reference in _deployed(options):
        name = _name(reference)
        if name in models:
            fail(f"model {name!r} is given twice")
        models[name] = ServedModel(
            name=name,
            model=_reference(options, reference),
            device=options.device,
            knobs=Knobs(**given, placement=where),
            protection=protection,
            resilience=resilience,
            redundant_models=redundant_models,
            priorities=Priorities.of(options.priority_levels, options.default_priority_level),
            surroundings=surroundings,
        )
    return models


def _deployed(options: ServeOptions) -> tuple[str, ...]:
    return options.model or ("minilm",)


def _surroundings(options: ServeOptions, share: Share) -> Surroundings:
    """Where the workers are: on this machine, or on the nodes of a cluster."""
    here = dataclasses.replace(THIS_MACHINE, start_timeout_s=options.start_timeout_s)
    if options.engine == "local":
        return here
    try:
        check_ray(options.device)
    except ValueError as error:
        fail(str(error))
    launch = driver_of(options.address, share)
    return dataclasses.replace(here, launch=launch, check_threads=ask_no_system, on_cluster=True, share=share)


def _redundant_models(options: ServeOptions) -> RedundantModels:
    if len(options.model) > 1 and (options.parity_model or options.backup_model or options.default_answer):
        fail("--parity-model, --backup-model and --default-answer are for one model; serve the others apart")
    try:
        deployed = _reference(options, _deployed(options)[0])
        parities = [
            parity_model(_reference(options, name, "parity"), deployed) for name in options.parity_model
        ]
        default = None if options.default_answer is None else _arrays(options.default_answer)
        if default is None and options.resilience == "default-answer":
            default = {}
        backup = None if options.backup_model is None else _reference(options, options.backup_model, "backup")
        return RedundantModels(tuple(parities), options.parity_encoder, backup, default)
    except (OSError, ValueError) as error:
        fail(in_a_sentence(error))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except UNREADABLE_ARRAYS:
        raise ValueError(f"{path} is no .npz file of arrays; write one with numpy.savez") from None


def _reference(options: ServeOptions, reference: str, role: str = "") -> ModelReference:
    """What a zygote builds a model from; `role` is "parity" or "backup", or empty for a deployed model.

    The file of a parity or backup model takes nothing of what is for factories.
    """
    is_file = Path(reference).suffix in FILE_SUFFIXES
    if role and is_file and not Path(reference).is_file():
        fail(f"there is no file {reference}, which --{role}-model names")
    owners = _owners(reference, role)
    given = _model_options(options.model_option, owners if role and is_file else ("", *owners))
    return ModelReference(reference, tuple(sorted(given.items())))


def _name(reference: str) -> str:
    """What clients call a model: a file's stem, a factory's name, or the name in the catalogue."""
    if "/" in reference or Path(reference).suffix in FILE_SUFFIXES:
        return Path(reference).stem
    return reference.rpartition(":")[2]


def _owners(reference: str, role: str = "") -> tuple[str, ...]:
    """What --model-option may call the owner of an option."""
    return _name(reference), role or reference


def _check_owners(options: ServeOptions) -> None:
    """Refuses an option of a model that there is not."""
    owners = [_owners(reference) for reference in _deployed(options)]
    owners += [_owners(reference, "parity") for reference in options.parity_model]
    if options.backup_model is not None:
        owners.append(_owners(options.backup_model, "backup"))
    known = list(dict.fromkeys(name for names in owners for name in names))
    for text in options.model_option:
        owner, _, _ = _model_option(text)
        if owner and owner not in known:
            fail(f"--model-option {text!r} is for no model here: give it to one of {', '.join(known)}")


def _model_options(texts: tuple[str, ...], owners: tuple[str, ...]) -> dict[str, str]:
    given = map(_model_option, texts)
    return {key: value for owner, key, value in given if owner in owners}


def _model_option(text: str) -> tuple[str, str, str]:
    """Its owner, empty for one of all models, its key and its value."""
    name, equals, value = text.partition("=")
    owner, _, key = name.rpartition(".")
    if not key or not equals:
        fail(f"cannot read --model-option {text!r}; expected KEY=VALUE")
    return owner, key, value
