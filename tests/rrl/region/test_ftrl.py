"""FTRL-Proximal against steps worked out by hand, and against AdaGrad where the two are the same."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.region.ftrl import FTRL
from tests.support import CHECKOUT

A_STEP = """
import sys, torch
from rrl.region.ftrl import FTRL
w = torch.zeros(1, requires_grad=True)
optimizer = FTRL([w])
optimizer.zero_grad()
w.sum().backward()
optimizer.step()
print("torch._dynamo" in sys.modules)
"""


def parameter(*values: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def step(optimizer: FTRL, w: torch.nn.Parameter, *gradient: float) -> list[float]:
    w.grad = torch.tensor(gradient, dtype=torch.float64)
    optimizer.step()
    return w.tolist()


def test_steps_worked_out_by_hand_without_regularisation() -> None:
    # lr 0.5, n_0 = 1, z_0 = 0, w_0 = 2, gradients chosen so that the roots are whole numbers.
    w = parameter(2.0)
    optimizer = FTRL([w], lr=0.5, initial_accumulator_value=1.0)
    # n: 1 -> 4, sigma = (2 - 1) / 0.5 = 2, z = 0 + √3 - 2·2, w = -z / (2 / 0.5) = (4 - √3) / 4
    assert step(optimizer, w, math.sqrt(3)) == pytest.approx([(4 - math.sqrt(3)) / 4])
    # n: 4 -> 9, sigma = (3 - 2) / 0.5 = 2, z = (√3 - 4) + √5 - 2·(4 - √3)/4, w = -z / (3 / 0.5)
    z = (math.sqrt(3) - 4) + math.sqrt(5) - 2 * (4 - math.sqrt(3)) / 4
    assert step(optimizer, w, math.sqrt(5)) == pytest.approx([-z / 6])
    assert optimizer.state[w]["accumulator"].item() == pytest.approx(9.0)
    assert optimizer.state[w]["linear"].item() == pytest.approx(z)


def test_steps_worked_out_by_hand_with_l1_l2_and_beta() -> None:
    # lr 1, n_0 = 9, λ1 = 1, λ2 = 2·0.5 = 1, β = 1, w_0 = 0; denominator (1 + √n)/1 + 1
    w = parameter(0.0, 0.0)
    optimizer = FTRL([w], lr=1.0, initial_accumulator_value=9.0, l1=1.0, l2=0.5, beta=1.0)
    # gradients 4 and 0.5: n = 25, 9.25; z = 4, 0.5; w = -(4 - 1)/(1 + 5 + 1), 0 since |z| <= 1
    assert step(optimizer, w, 4.0, 0.5) == [pytest.approx(-3 / 7), 0.0]
    # gradients 12 and 0: n = 169, sigma = 13 - 5 = 8, z = 4 + 12 - 8·(-3/7) = 136/7;
    # w = -(136/7 - 1)/(1 + 13 + 1)
    assert step(optimizer, w, 12.0, 0.0) == [pytest.approx(-(136 / 7 - 1) / 15), 0.0]
    # gradients 0 and -2: the first stands still; n = 13.25, z = 0.5 - 2 = -1.5;
    # w = (1.5 - 1)/(1 + √13.25 + 1)
    assert step(optimizer, w, 0.0, -2.0) == [
        pytest.approx(-(136 / 7 - 1) / 15),
        pytest.approx(0.5 / (2 + math.sqrt(13.25))),
    ]


def test_another_learning_rate_power_replaces_the_root() -> None:
    # power -1: σ = (n - n_before)/lr; lr 1, n: 1 -> 5, z = 2 - 4·1, w = 2/5
    w = parameter(1.0)
    assert step(FTRL([w], lr=1.0, lr_power=-1.0, initial_accumulator_value=1.0), w, 2.0) == pytest.approx(
        [0.4]
    )


def test_with_z_0_a_zero_gradient_forgets_the_initial_weights_and_from_weights_it_keeps_them() -> None:
    forgets, keeps = parameter(3.0), parameter(3.0)
    assert step(FTRL([forgets], lr=0.1), forgets, 0.0) == pytest.approx([0.0])
    assert step(FTRL([keeps], lr=0.1, beta=0.7, start_from_weights=True), keeps, 0.0) == pytest.approx([3.0])


@settings(deadline=None)
@given(
    gradients=st.lists(st.floats(-10, 10), min_size=1, max_size=8),
    start=st.floats(-3, 3),
    lr=st.floats(0.01, 2),
    accumulator=st.floats(0.01, 4),
    beta=st.floats(0, 1),
)
def test_from_the_weights_and_without_regularisation_it_equals_adagrad(
    gradients: list[float], start: float, lr: float, accumulator: float, beta: float
) -> None:
    ours, theirs = parameter(start), parameter(start)
    ftrl = FTRL([ours], lr=lr, initial_accumulator_value=accumulator, beta=beta, start_from_weights=True)
    adagrad = torch.optim.Adagrad([theirs], lr=lr, initial_accumulator_value=accumulator, eps=beta)
    for g in gradients:
        step(ftrl, ours, g)
        theirs.grad = torch.tensor([g], dtype=torch.float64)
        adagrad.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_l1_gives_exact_zeros_where_the_data_say_nothing() -> None:
    rng = torch.Generator().manual_seed(1)
    x = torch.linalg.qr(torch.randn(200, 10, generator=rng)).Q * 200**0.5  # uncorrelated inputs
    y = x[:, :2] @ torch.tensor([2.0, -3.0])
    w = torch.nn.Parameter(torch.zeros(10))
    optimizer = FTRL([w], lr=0.5, l1=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(x @ w, y).backward()
        optimizer.step()
    assert (w[2:] == 0).all()
    assert (w[:2].abs() > 1).all()


def test_the_state_survives_a_round_trip_through_state_dict() -> None:
    w = parameter(1.0, -2.0)
    optimizer = FTRL([w], lr=0.3, l1=0.01, l2=0.1, beta=0.5, start_from_weights=True)
    step(optimizer, w, 0.5, -1.0)
    other = torch.nn.Parameter(w.detach().clone())
    resumed = FTRL([other])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert step(resumed, other, -0.2, 3.0) == step(optimizer, w, -0.2, 3.0)


def test_a_closure_is_evaluated_and_parameters_without_gradient_stay() -> None:
    w, untouched = parameter(1.0), parameter(5.0)
    optimizer = FTRL([w, untouched], lr=0.1, start_from_weights=True)

    def closure() -> float:
        loss = (w**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert w.item() < 1.0
    assert untouched.item() == 5.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"lr_power": 0.5}, "lr_power must not be positive"),
        ({"initial_accumulator_value": -1.0}, "initial_accumulator_value must not be negative"),
        ({"l1": -0.1}, "l1 must not be negative"),
        ({"l2": -0.1}, "l2 must not be negative"),
        ({"beta": -0.1}, "beta must not be negative"),
        ({"initial_accumulator_value": 0.0}, "must not all be 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FTRL([parameter(1.0)], **settings)  # type: ignore[arg-type]


def test_sparse_gradients_are_refused() -> None:
    embedding = torch.nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="dense gradients only"):
        FTRL(embedding.parameters()).step()


def test_a_step_does_not_wait_for_torchs_compiler_to_be_imported() -> None:
    assert subprocess.check_output([sys.executable, "-c", A_STEP], cwd=CHECKOUT, text=True) == "False\n"
