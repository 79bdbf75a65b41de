"""All calls of the protocol by a grammar: call number i of a seed is always the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.fuzz.calls import INFER, LOAD, SERVICE, Fate, FuzzCall, Metadata
from scripts.robustness.fuzz.mutation import mutated
from scripts.robustness.fuzz.odd_values import ODD_INTEGERS, ODD_NAMES, ODD_VERSIONS
from scripts.robustness.fuzz.server.control_grammar import is_modest, load_request
from scripts.robustness.fuzz.server.infer_grammar import infer_request
from scripts.robustness.fuzz.server.oracle import MINILM
from scripts.robustness.fuzz.server.rest_grammar import rest_call
from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.recent_arrivals import METHOD as ARRIVALS
from serving_adapter.recent_arrivals import Question, pack_question

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
ODD_METHODS = (
    "/",
    "/x",
    f"{SERVICE}Nothing",
    f"{SERVICE}modelinfer",
    "/grpc.health.v1.Health/Nothing",
    "/a/" + "b" * 900,
)
ODD_METADATA: tuple[Metadata, ...] = (
    ((CONTROL_KEY_HEADER, "wrong"),),
    ((CONTROL_KEY_HEADER, ""),),
    ((CONTROL_KEY_HEADER, "a"), (CONTROL_KEY_HEADER, "b")),
    (("x", "y" * 3000),),
    (("x-bin", b"\x00\xff"),),
    (("triton-request-id", "1"), ("traceparent", "00-0-0-0")),
    tuple((f"x{i}", "y") for i in range(60)),
)


def call(seed: int, number: int, control_key: str = "") -> FuzzCall:
    """Call `number` of a run with `seed`. Controlling ones mostly know the key."""
    rng = Random(seed << 40 | number)
    draw = rng.random()
    if draw < 0.1:
        return rest_call(rng)
    if draw < 0.57:
        request, fate, kind = infer_request(rng)
        made = FuzzCall(INFER, request.SerializeToString(), fate, kind)
    elif draw < 0.77:
        made = _damaged(INFER, infer_request(rng)[0].SerializeToString(), rng)
    elif draw < 0.81:
        made = _load(rng, control_key)
    elif draw < 0.96:
        made = _any_method(rng)
    elif draw < 0.98:
        made = _arrivals(rng)
    else:
        made = FuzzCall(
            rng.choice(ODD_METHODS), rng.randbytes(rng.randint(0, 40)), Fate.REFUSED, "odd method"
        )
    return _dressed(made, rng)


def _damaged(method: str, data: bytes, rng: Random) -> FuzzCall:
    return FuzzCall(method, mutated(data, rng), Fate.EITHER, f"damaged {method.rpartition('/')[2]}")


def _load(rng: Random, control_key: str) -> FuzzCall:
    request, fate, kind = load_request(rng)
    data = request.SerializeToString()
    if rng.random() < 0.2:
        data, kind = mutated(data, rng), "damaged RepositoryModelLoad"
        if not _asks_modestly(data):
            data = b""
    metadata: Metadata = ((CONTROL_KEY_HEADER, control_key),)
    if rng.random() < 0.2:
        fate, metadata = Fate.REFUSED, rng.choice(ODD_METADATA)
    return FuzzCall(LOAD, data, fate, kind, metadata)


def _asks_modestly(data: bytes) -> bool:
    try:
        request = pb.RepositoryModelLoadRequest.FromString(data)
    except ValueError:  # DecodeError is one
        return True
    except Exception:
        return True
    return is_modest(request.parameters["config"].string_param)


def _any_method(rng: Random) -> FuzzCall:
    method = METHODS[rng.choice(tuple(METHODS))]
    path = f"{SERVICE}{method.name}"
    message = _random_message(method.input_type, rng, depth=3)
    if path == LOAD:
        message.parameters.clear()
    for field in ("name", "model_name"):
        if field in method.input_type.fields_by_name and rng.random() < 0.6:
            setattr(message, field, rng.choice((MINILM, "two_outputs")))
    data = message.SerializeToString()
    if rng.random() < 0.3 and path != LOAD:
        return _damaged(path, data, rng)
    return FuzzCall(path, data, Fate.EITHER, method.name)


def _arrivals(rng: Random) -> FuzzCall:
    model = rng.choice((MINILM, "two_outputs", *ODD_NAMES))
    data = pack_question(Question(model, rng.choice((0, 1, 2**64 - 1, rng.randrange(2**40)))))
    if rng.random() < 0.5:
        data = mutated(data, rng)
    return FuzzCall(ARRIVALS, data, Fate.EITHER, "recent arrivals")


def _dressed(made: FuzzCall, rng: Random) -> FuzzCall:
    """Some calls have odd metadata, little time, or a client that gives up; some are compressed."""
    values: dict[str, Any] = dict(vars(made))
    if not made.metadata and rng.random() < 0.05:
        values["metadata"] = rng.choice(ODD_METADATA)
    draw = rng.random()
    if draw < 0.005:
        values |= {"deadline_s": rng.choice((0.0001, 0.001, 0.01)), "fate": Fate.EITHER}
    elif draw < 0.01:
        values |= {"cancelled_after_s": rng.choice((0.0, 0.001, 0.01)), "fate": Fate.EITHER}
    elif draw < 0.02:
        values |= {"compressed": True, "fate": Fate.EITHER}
    return FuzzCall(**values)


def _random_message(descriptor: Descriptor, rng: Random, depth: int) -> Any:
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() < 0.4:
            _fill(message, field, rng, depth)
    return message


def _fill(message: Any, field: FieldDescriptor, rng: Random, depth: int) -> None:
    count = rng.choice((1, 1, 2, 5)) if field.is_repeated else 1
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        for _ in range(count):
            key, value = rng.choice(ODD_NAMES), getattr(message, field.name)
            if kind.fields_by_name["value"].message_type is not None:
                value[key].SetInParent()
    elif kind is not None:
        for _ in range(count if depth else 0):
            made = _random_message(kind, rng, depth - 1)
            if field.is_repeated:
                getattr(message, field.name).add().CopyFrom(made)
            else:
                getattr(message, field.name).CopyFrom(made)
    else:
        values = [_scalar(field, rng) for _ in range(count)]
        if field.is_repeated:
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, values[0])


def _scalar(field: FieldDescriptor, rng: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 16)))
    return _SCALARS.get(field.cpp_type, _integers)(rng)


def _integers(rng: Random) -> int:
    return rng.choice((0, 1, 2, 7))


_SCALARS: dict[int, Callable[[Random], Any]] = {
    FieldDescriptor.CPPTYPE_STRING: lambda rng: rng.choice((*ODD_NAMES, *ODD_VERSIONS)),
    FieldDescriptor.CPPTYPE_BOOL: lambda rng: rng.random() < 0.5,
    FieldDescriptor.CPPTYPE_DOUBLE: lambda rng: rng.choice((0.0, -1.0, float("nan"), float("inf"))),
    FieldDescriptor.CPPTYPE_FLOAT: lambda rng: rng.choice((0.0, -1.0, float("nan"), float("inf"))),
    FieldDescriptor.CPPTYPE_INT64: lambda rng: rng.choice(ODD_INTEGERS),
    FieldDescriptor.CPPTYPE_INT32: lambda rng: rng.choice((0, 1, -1, 2**31 - 1, -(2**31))),
    FieldDescriptor.CPPTYPE_UINT64: lambda rng: rng.choice((0, 1, 2**64 - 1)),
}
