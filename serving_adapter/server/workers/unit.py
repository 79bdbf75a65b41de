"""A serving unit: workers on different nodes that run each batch together (SERF, section III; its C_inter).

    front --RunBatch--> first member --RunBatch, inputs--> the others
    all: run it, each with its part of the weights; agree on how it went
    front <--outputs-- first member

The members are a process group of PyTorch's over gloo. Whatever a member cannot do with the others breaks
the unit: each that notices ends, and the unit is replaced whole. A member that ends is noticed at once by
those who wait for it, and one that hangs after `SILENCE_S`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from serving_adapter.json_text import parsed
from serving_adapter.models.model import Model
from serving_adapter.server.workers.arena import Arena, end_of
from serving_adapter.server.workers.messages import RunBatch
from serving_adapter.server.workers.parallelism import UnitMember

MEETING_S = 86_400.0  # at most; whoever forks a member ends it once --start-timeout-s is over
SILENCE_S = 30.0  # after which a member that says nothing counts as gone
KEEP_ALIVE_S = 5.0  # how often the first one speaks at least
BACKEND = "rrl_unit"
FIRST = 0  # its rank


class UnitBroken(Exception):
    """A member is gone, hangs, or saw something else than the others."""


class Unit:
    """One member's end of it: the process group, and what goes through it."""

    def __init__(
        self,
        member: UnitMember,
        meeting_fd: int | None = None,
        meeting_s: float = MEETING_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Returns once all members are there; UnitBroken if they are not within `meeting_s`.

        The first member listens at `meeting_fd`, whose port is `member.meeting_port`.
        """
        self._size = member.size
        self.is_first = member.rank == FIRST
        dist.Backend.register_backend(BACKEND, partial(_gloo, member.host), devices=["cpu"])
        with _whole():
            store = dist.TCPStore(
                member.meeting_host,
                member.meeting_port,
                is_master=self.is_first,
                timeout=timedelta(seconds=meeting_s),
                wait_for_workers=False,
                master_listen_fd=meeting_fd,
            )
            here = [f"member {rank} is here" for rank in range(member.size)]
            store.set(here[member.rank], "")
            store.wait(here)
            silence = timedelta(seconds=silence_s)
            dist.init_process_group(
                BACKEND, store=store, rank=member.rank, world_size=member.size, timeout=silence
            )
        assert dist.group.WORLD is not None, "it was made just now"
        self._group = dist.group.WORLD

    def split(self, model: Model) -> Model:
        """This member's part of a model; one without a plan stays whole."""
        if model.tensor_parallelism is None:
            return model
        return replace(model, module=model.tensor_parallelism.split(model.module, self._group))

    def give(self, order: RunBatch, inputs: Arena) -> None:
        """Has the others run the batch that lies in the first member's arena."""
        inputs.ensure(order.capacity_bytes)
        text = bytearray(json.dumps(order.to_wire()).encode())
        data_bytes = end_of(order.inputs)
        self._broadcast(torch.tensor([len(text), data_bytes]))
        self._broadcast(_as_tensor(text))
        if data_bytes:
            self._broadcast(_as_tensor(inputs.view[:data_bytes]))

    def keep_alive(self) -> None:
        """Tells the others that there is nothing to do yet."""
        self._broadcast(torch.tensor([0, 0]))

    def take(self, inputs: Arena) -> RunBatch:
        """Waits for the first member's next batch, and puts it into this member's arena."""
        sizes = torch.zeros(2, dtype=torch.int64)
        while not sizes[0]:
            self._broadcast(sizes)
        text_bytes, data_bytes = sizes.tolist()
        text = bytearray(text_bytes)
        self._broadcast(_as_tensor(text))
        inputs.ensure_for_batch(data_bytes)
        if data_bytes:
            self._broadcast(_as_tensor(inputs.view[:data_bytes]))
        return replace(RunBatch.from_wire(parsed(bytes(text))), capacity_bytes=inputs.capacity_bytes)

    def agree(self, has_failed: bool) -> None:
        """Called by all members after each batch; UnitBroken unless it failed at all of them, or at none.

        A batch that the model refuses fails at all. One that fails at one alone, by a lack of memory say,
        has left the others with answers that may be wrong.
        """
        failed = torch.tensor([int(has_failed)])
        with _whole():
            dist.all_reduce(failed)
        if failed.item() not in (0, self._size):
            raise UnitBroken(f"{failed.item()} of its {self._size} members failed at a batch")

    @staticmethod
    def _broadcast(data: Tensor) -> None:
        with _whole():
            dist.broadcast(data, src=FIRST)


def _as_tensor(memory: bytearray | memoryview) -> Tensor:
    """The same bytes, not empty, as a tensor."""
    return torch.frombuffer(memory, dtype=torch.uint8)


def _gloo(host: str, store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Gloo that listens on this host alone. By itself it takes the first address of the machine's name."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank, size, options)


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """PyTorch has no type of its own for what goes wrong in gloo."""
    try:
        yield
    except RuntimeError as error:
        raise UnitBroken(" ".join(str(error).split())) from None
