"""What models are made of others: the steps of an ensemble, and the ensembles of a step.

An ensemble of a Triton has no instances or batches of its own: its steps are what can be tuned. The steps of
an ensemble that is a step count as steps of the outer one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.target.error import ModelAbsent, TargetError, TargetLost


def is_ensemble(config: ModelConfig) -> bool:
    return config.HasField("ensemble_scheduling")


def steps_of(config: ModelConfig, config_of: Callable[[str], ModelConfig], address: str) -> list[str]:
    """The models that do the work of an ensemble, each once, in the order of its configuration.

    TargetError for a step that is not loaded, and for an ensemble that is a step of itself.
    """
    found: dict[str, None] = {}

    def walk(ensemble: ModelConfig, path: tuple[str, ...]) -> None:
        for name in dict.fromkeys(step.model_name for step in ensemble.ensemble_scheduling.step):
            if name in path:
                raise TargetError(
                    f"the ensemble {path[0]!r} at {address} is made of itself: {' > '.join((*path, name))}; "
                    "take the step out that closes the circle"
                )
            step = _step(name, path[-1], config_of, address)
            if is_ensemble(step):
                walk(step, (*path, name))
            else:
                found[name] = None

    walk(config, (config.name,))
    return list(found)


def ensembles_of(model: str, others: Iterable[ModelConfig]) -> dict[str, int]:
    """The ensembles of which the model is a step, or a step of a step, and the max_batch_size of each."""
    ensembles = [other for other in others if is_ensemble(other)]
    found: dict[str, int] = {}
    inner = [model]
    while inner:
        name = inner.pop()
        for ensemble in ensembles:
            if ensemble.name not in found and is_step(name, ensemble):
                found[ensemble.name] = ensemble.max_batch_size
                inner.append(ensemble.name)
    return found


def is_step(model: str, ensemble: ModelConfig) -> bool:
    """True if the ensemble names the model among its own steps."""
    return any(step.model_name == model for step in ensemble.ensemble_scheduling.step)


def check_fits(max_batch_size: float, ensembles: Mapping[str, int]) -> str:
    """Says in one sentence which ensemble such a step would be too small for; empty if none."""
    for name, least in ensembles.items():
        if max_batch_size < least:
            return (
                f"max_batch_size {max_batch_size:g} is below the {least} of the ensemble {name!r}, of which "
                "the model is a step: Triton would take it out of service"
            )
    return ""


def _step(name: str, ensemble: str, config_of: Callable[[str], ModelConfig], address: str) -> ModelConfig:
    try:
        return config_of(name)
    except TargetError as error:
        if isinstance(error, TargetLost) and not isinstance(error, ModelAbsent):
            raise
        raise TargetError(
            f"{name!r}, a step of the ensemble {ensemble!r} at {address}, is not loaded, so the ensemble "
            "cannot be tuned: load it"
        ) from None
