"""A model that does what it must not, as the first value of an item says; else it answers rightly."""

import os
import signal
import sys

import torch
from torch import nn

from serving_adapter.models.model import Model
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.messages import BatchError
from serving_adapter.tensors import TensorSpec

ANOTHER_OUTPUT, MISSING_OUTPUT, OTHER_TYPE, OTHER_FLOAT, UNKNOWN_TYPE, OTHER_RANK, OTHER_SIZE = range(
    101, 108
)
FORKS, SAYS_AN_OLD_ANSWER = 301, 302
RAISES, SAYS_MUCH, EXITS, CRASHES, BREAKS, FEWER_ROWS, INTERRUPTS, SAYS_NOTHING = range(201, 209)
REASON = "the vocabulary has no such word"
PRINTED = "as it happens"
ITEM_SIZE = 16


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there are no words")


class Wayward(nn.Module):
    """Answers `double`, twice its input, and `first`, a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    def forward(self, x):
        firsts = set(x[:, 0].tolist())
        answer = {"double": 2 * x, "first": x[:, :1].long()}
        if self.is_broken or BREAKS in firsts:
            self.is_broken = True
            raise RuntimeError("the device is lost")
        if FORKS in firsts:
            os.fork()  # and both go on as if they were the worker
        if SAYS_AN_OLD_ANSWER in firsts:
            say_an_old_answer()
        if CRASHES in firsts:
            os._exit(70)
        if EXITS in firsts:
            raise SystemExit("enough")
        if RAISES in firsts:
            raise KeyError(REASON)
        if INTERRUPTS in firsts:
            raise KeyboardInterrupt
        if SAYS_NOTHING in firsts:
            raise Unspeakable
        if SAYS_MUCH in firsts:
            raise ValueError("begin\n" + 5000 * "ż\ud800" + "\nend")
        if ANOTHER_OUTPUT in firsts:
            answer["warning"] = x
        if MISSING_OUTPUT in firsts:
            del answer["first"]
        if OTHER_TYPE in firsts:
            answer["double"] = answer["double"].int()
        if OTHER_FLOAT in firsts:
            answer["double"] = answer["double"].half()
        if UNKNOWN_TYPE in firsts:
            answer["double"] = answer["double"].cfloat()
        if OTHER_RANK in firsts:
            answer["first"] = answer["first"][:, 0]
        if OTHER_SIZE in firsts:
            answer["double"] = answer["double"][:, :5]
        if FEWER_ROWS in firsts:
            answer["double"] = answer["double"][:1].expand(x.shape[0] + 1, -1)
        return answer


def say_an_old_answer() -> None:
    """Has the worker answer the batch before the one that it holds, as if it were confused."""
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    number = frame.f_locals["order"].number - 1
    messages.send(frame.f_locals["channel"], BatchError("an old answer", number=number))


def wayward() -> Model:
    return Model(Wayward(), (TensorSpec("x", "FP32", (ITEM_SIZE,)),))


class Answering(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


def half_precision():
    return Answering(lambda x: x.cfloat()), [TensorSpec("x", "FP32", (4,))]


def raising():
    def fail(x):
        raise KeyError(REASON)

    return Answering(fail), [TensorSpec("x", "FP32", (4,))]


def without_a_key():
    raise KeyError(REASON)


def unlicensed():
    raise SystemExit(REASON)


def without_waiting():
    """Wants to hear of no process that ends, and still cannot be run on anything."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return raising()


def printing():
    """Prints while it is built and whenever it runs."""
    print(PRINTED)

    def answer(x):
        print(PRINTED, flush=True)
        print(PRINTED, file=sys.stderr, flush=True)
        return x

    return Answering(answer), [TensorSpec("x", "FP32", (ITEM_SIZE,))]


def boxes():
    """As many boxes as the first value says, none for the example input."""
    return Answering(lambda x: torch.zeros(len(x), max(0, int(x[0, 0]) - 1), 4)), [
        TensorSpec("x", "FP32", (ITEM_SIZE,))
    ]


def fixed_at_first():
    """As many numbers as the first value says: one for every example input."""
    return Answering(lambda x: torch.zeros(len(x), max(1, int(x[0, 0])), 2)), [
        TensorSpec("x", "FP32", (ITEM_SIZE,))
    ]


def inverted():
    """Answers what is not so; a BOOL has one byte."""
    return Answering(lambda x: ~x), [TensorSpec("x", "BOOL", (ITEM_SIZE,))]
