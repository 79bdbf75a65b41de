"""How a model is split over the nodes of a serving unit (SERF, section III): PyTorch's tensor parallelism.

Each node of a unit holds a part of the large layers, and all of them run each batch together. A factory that
wants this returns a `Model` with such a plan:

    def styles():
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {"inner": ColwiseParallel(), "outer": RowwiseParallel()}

    Model(module, inputs, tensor_parallelism=TensorParallelism(styles, parts=4096))

A layer that is split by columns answers a part of its units, and one that is split by rows takes such a part.
What lies between the two must look at each unit by itself, as a ReLU does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True)
class TensorParallelism:
    """A plan for `torch.distributed.tensor.parallel.parallelize_module`, and into how much it can split.

    `styles` returns a style for each layer by its name in the module, where `*` stands for any one part of
    the name. It is called in the processes of units alone, as importing PyTorch's styles takes a second.
    `parts` is what the number of nodes must divide: 12 where a layer has 12 attention heads. `separated`
    makes from the module that runs on one node the one that is split, where they are not the same.
    """

    styles: Callable[[], Mapping[str, ParallelStyle]]
    parts: int
    separated: Callable[[nn.Module], nn.Module] | None = None

    def split(self, module: nn.Module, members: ProcessGroup) -> nn.Module:
        """This process's part of the module; every member of the group calls it with the same weights."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor.parallel import parallelize_module

        whole = module if self.separated is None else self.separated(module)
        mesh = DeviceMesh.from_group(members, "cpu")
        return SplitModule(parallelize_module(whole, mesh, dict(self.styles()), src_data_rank=None))


class SplitModule(nn.Module):
    """Runs a module that is split where only products and sums of parts travel.

    In inference mode PyTorch takes a linear layer for one operation that it cannot split by rows. It would
    gather the whole weights at each batch.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return self.module(*inputs)
