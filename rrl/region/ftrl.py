"""FTRL-Proximal, the optimiser that trains RRL's latency estimator (RRL, section 5.1).

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, Algorithm 1, for every coordinate:

    σ_t = (√(n_t-1 + g_t²) - √n_t-1) / α
    z_t = z_t-1 + g_t - σ_t w_t
    n_t = n_t-1 + g_t²
    w_t+1 = 0                                                    if |z_t| <= λ1
            -(z_t - sgn(z_t) λ1) / ((β + √n_t) / α + λ2)         otherwise

| symbol | here | meaning |
|---|---|---|
| w | the parameter | weights |
| g | its gradient | |
| n | `state["accumulator"]` | sum of squared gradients, from `initial_accumulator_value` on |
| z | `state["linear"]` | the linear term of the proximal problem |
| α | `lr` | learning rate |
| √n | n ** -`lr_power` | TensorFlow lets the power differ from -0.5 |
| β | `beta` | smoothing of the first steps |
| λ1 | `l1` | strength of the l1 term. A weight with abs(z) <= λ1 is exactly 0 |
| λ2 | 2 `l2` | twice the strength of the l2 term (TensorFlow counts l2 · w², the paper ½ λ2 · w²) |

| z_0 | the first step | suits |
|---|---|---|
| 0, as in the paper and TensorFlow | forgets the initial weights and follows the gradients | a linear model |
| -w_0 (β + √n_0) / α, with `start_from_weights` | starts from the initial weights | a network |

A linear model starts at 0. The units of a network must start apart, so that z_0 = 0 cripples it. With
`start_from_weights` and without regularisation FTRL equals AdaGrad, with β in the place of its ε.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.optim.optimizer import Optimizer, ParamsT


class FTRL(Optimizer):
    """FTRL-Proximal with the parameters and defaults of TensorFlow's `Ftrl`, as in the table above."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
        start_from_weights: bool = False,
    ) -> None:
        if not lr > 0:
            raise ValueError(f"lr must be positive, got {lr}")
        if not lr_power <= 0:
            raise ValueError(f"lr_power must not be positive, got {lr_power}; -0.5 is the usual value")
        for name, value in (
            ("initial_accumulator_value", initial_accumulator_value),
            ("l1", l1),
            ("l2", l2),
            ("beta", beta),
        ):
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if initial_accumulator_value == l2 == beta == 0:
            raise ValueError("initial_accumulator_value, l2 and beta must not all be 0: 0 / 0 where g = 0")
        defaults = {
            "lr": lr,
            "lr_power": lr_power,
            "initial_accumulator_value": initial_accumulator_value,
            "l1": l1,
            "l2": l2,
            "beta": beta,
            "start_from_weights": start_from_weights,
        }
        super().__init__(params, defaults)

    # As torch has them, but without its compiler, which it imports for seconds to leave these two to Python.
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                if w.grad.is_sparse:
                    raise RuntimeError("FTRL takes dense gradients only, got a sparse one")
                if not self.state[w]:
                    self.state[w] = _initial_state(w, group)
                _ftrl_step(w, w.grad, cast(dict[str, torch.Tensor], self.state[w]), group)
        return loss


def _initial_state(w: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
    n_0 = torch.full_like(w, group["initial_accumulator_value"])
    if not group["start_from_weights"]:
        return {"accumulator": n_0, "linear": torch.zeros_like(w)}
    return {"accumulator": n_0, "linear": -w * (n_0.pow(-group["lr_power"]) + group["beta"]) / group["lr"]}


def _ftrl_step(
    w: torch.Tensor, g: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]
) -> None:
    """Algorithm 1 for one parameter tensor, in place."""
    n, z, α = state["accumulator"], state["linear"], group["lr"]
    root_before = n.pow(-group["lr_power"])
    n.addcmul_(g, g)
    root = n.pow(-group["lr_power"])
    z.add_(g).addcmul_(root - root_before, w, value=-1.0 / α)
    quadratic = root.add_(group["beta"]).div_(α).add_(2.0 * group["l2"])
    shrunk = torch.nn.functional.softshrink(z, group["l1"]) if group["l1"] else z  # z - sgn(z) λ1, or 0
    torch.div(shrunk, quadratic, out=w).neg_()
