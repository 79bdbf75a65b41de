"""A linear layer whose weights are laid out for the CPU's matrix kernels once, not at every call.

Small batches are bound by reading weights, and MKL lays them out anew at each product. oneDNN, which torch
carries for its compiler, takes them laid out in advance and adds the bias, a GELU or a residual on the
way out. These operators have no public name; where they are missing, and on a GPU, plain ones do the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 8
"""oneDNN compiles a kernel for each number of rows it meets (about 2 ms): give it multiples of this."""


class PackedLinear(nn.Linear):
    """`nn.Linear` with an optional GELU after it, or a residual added to it. Call `pack` before use."""

    _packed: Tensor | None = None

    def pack(self) -> None:
        """Lays the weights out; call it when they are final. Forked processes share the result."""
        if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            with torch.inference_mode():
                self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None or x.device.type != "cpu":
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def gelu(self, x: Tensor) -> Tensor:
        if self._packed is None or x.device.type != "cpu":
            return F.gelu(F.linear(x, self.weight, self.bias))
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "gelu", [], "none")

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        if self._packed is None or x.device.type != "cpu":
            return F.linear(x, self.weight, self.bias) + residual
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self.bias, "add")
