"""What of a model may be tuned, and what is refused before anything is changed.

Measured on a stock Triton 2.51 under load: a change of the instance count alone is made in place. Every other
change loads the model anew beside the old one, which answers what it holds and ends. Such a load

- loads every ensemble of which the model is a step anew;
- takes an ensemble out of service if the two no longer fit, as after a smaller max_batch_size. So that of a
  step stays at or above its ensembles', and these are looked at after each change of it (`change`);
- cuts the sequences in progress, as the new instances do not know them.

A sequence batcher with the strategy `direct` allows a change of the instance count. With `oldest`, Triton
crashes when it ends an instance.
"""

from __future__ import annotations

from collections.abc import Collection

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.address import ServerAddress
from serving_adapter.model_configuration import SERVER_NAME, knob_values
from serving_adapter.target.error import IsEnsemble, TargetError
from serving_adapter.target.open_inference.composition import is_ensemble

_THREADS = {"intra_op_threads", "inter_op_threads"}
_EXTENSIONS_FOR_TUNING = ("statistics", "model_configuration", "model_repository")


def check_extensions(server: str, extensions: Collection[str], control: bool, has_page: bool) -> None:
    """A server without Triton's extensions can be observed by its metrics page, and not be tuned."""
    missing = [name for name in _EXTENSIONS_FOR_TUNING if name not in extensions]
    if control and missing:
        raise TargetError(
            f"{server} lacks Triton's extension{'s' * (len(missing) > 1)} {', '.join(missing)}, without "
            "which no model can be tuned: it can only be observed, with --advise and --metrics-url; to tune "
            "the model, serve it with rrl-serve or Triton"
        )
    if "statistics" in missing and not has_page:
        raise TargetError(
            f"{server} lacks Triton's extension statistics, so only its metrics page tells how it "
            "fares; give --metrics-url, e.g. http://HOST:8082/metrics for MLServer"
        )


def tunable(config: ModelConfig) -> dict[str, int]:
    """The knobs to tune, with the values in force.

    Without a dynamic batcher max_batch_size only limits what clients send, so it is none; nor is a number of
    threads that is left to the backend.
    """
    values = _knob_values(config)
    for name in _left_to_backend(values):
        del values[name]
    if not config.HasField("dynamic_batching"):
        values.pop("max_batch_size", None)
    if config.HasField("sequence_batching"):
        changeable = () if _batches_oldest_sequences(config) else ("instances",)
        values = {name: value for name, value in values.items() if name in changeable}
    return values


def check_tunable(config: ModelConfig, address: str) -> None:
    """Refuses a model of which nothing may be changed."""
    model = f"model {config.name!r} at {address}"
    if is_ensemble(config):
        steps = ", ".join(sorted({step.model_name for step in config.ensemble_scheduling.step}))
        raise IsEnsemble(
            f"{model} is an ensemble, which has no instances or batches of its own to tune; rrl-tune --model "
            f"{config.name} tunes its steps ({steps}), without other models, --bench and --advise"
        )
    if _batches_oldest_sequences(config):
        raise TargetError(
            f"{model} batches sequences by the strategy 'oldest', which forbids every knob: a new load cuts "
            "the sequences in progress, and Triton may crash when it ends an instance; use the strategy "
            "'direct', under which the instances can be tuned, or only observe it with --advise"
        )
    if not tunable(config):
        raise TargetError(
            f"{model} has no knob: its configuration needs an instance_group, a dynamic_batching section, or "
            "the parameters INTRA_OP_THREAD_COUNT or INTER_OP_THREAD_COUNT"
        )


def notes(config: ModelConfig, server: str, ensembles: Collection[str] = ()) -> list[str]:
    """What a person should know of how this server tunes this model, one sentence each."""
    told = []
    if ensembles:
        of = " and ".join(map(repr, sorted(ensembles)))
        told.append(
            f"model {config.name!r} is a step of the ensemble {of}: its max_batch_size stays at or above the "
            "ensemble's, which is looked at after every change"
        )
    if config.HasField("sequence_batching") and not _batches_oldest_sequences(config):
        told.append(
            f"model {config.name!r} batches sequences, so the instances are its only knob: every other "
            "change would cut the sequences in progress"
        )
    elif config.max_batch_size > 1 and not (config.HasField("dynamic_batching") or is_ensemble(config)):
        told.append(
            f"model {config.name!r} has no dynamic_batching section, so max_batch_size and "
            "max_queue_delay_us are no knobs: Triton joins no requests; add 'dynamic_batching { }' to have "
            "them tuned"
        )
    if _is_pytorchs(config, server) and _THREADS & set(_knob_values(config)):
        told.append(
            f"model {config.name!r} runs in the PyTorch backend, whose numbers of threads are the whole "
            "server's, and may stay as they were first set until it restarts; leave them out with --forbid "
            "where other models run there, or where a change of them changes nothing"
        )
    for name in sorted(_left_to_backend(_knob_values(config))):
        told.append(
            f"model {config.name!r} leaves {name} to its backend (a value below 1), so it is no knob; give "
            "it a value of 1 or more to have it tuned"
        )
    if len(config.instance_group) > 1:
        told.append(
            f"model {config.name!r} has {len(config.instance_group)} instance groups: the knob instances is "
            f"the count of the first, {config.instance_group[0].name!r}; the others stay as they are"
        )
    if config.model_transaction_policy.decoupled:
        told.append(f"model {config.name!r} is decoupled: latencies go to the last response of a request")
    return told


def notes_on_address(address: ServerAddress) -> list[str]:
    """What a person should know of where the server is, one sentence each."""
    if not (several := address.several_addresses()):
        return []
    return [
        f"{address.host} has several addresses ({', '.join(several)}): if these are several servers, a "
        "change reaches one of them, and a new connection may be to another; give the address of one, and "
        "tune each by a run of its own"
    ]


def notes_on_counters(address: str, server: str, has_page: bool, has_statistics: bool) -> list[str]:
    """What the counters leave out, one sentence each."""
    if not has_page:
        return [
            f"{address} tells completions, not arrivals, and no percentiles; "
            "give its metrics URL (--metrics-url), so that a growing queue is seen"
        ]
    if not has_statistics:
        return [
            f"{server} tells neither its knobs nor how many requests wait: it is observed by what it "
            "answers, and cannot be tuned"
        ]
    return []


def _knob_values(config: ModelConfig) -> dict[str, int]:
    try:
        return knob_values(config)
    except ValueError as error:
        raise TargetError(f"the configuration of model {config.name!r} cannot be read: {error}") from None


def _left_to_backend(values: dict[str, int]) -> set[str]:
    return {name for name in _THREADS if values.get(name, 1) < 1}


def _is_pytorchs(config: ModelConfig, server: str) -> bool:
    """True for Triton's PyTorch backend. The instances of our own server have threads of their own."""
    named = config.backend == "pytorch" or config.platform == "pytorch_libtorch"
    return named and not server.startswith(SERVER_NAME)


def _batches_oldest_sequences(config: ModelConfig) -> bool:
    return config.sequence_batching.WhichOneof("strategy_choice") == "oldest"
