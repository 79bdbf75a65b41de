"""Encoders and decoder: exact for a linear model, whatever is missing."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serving_adapter.parity import coding
from serving_adapter.parity.coding import ENCODERS, coefficients, decode, is_decodable
from serving_adapter.tensors import TensorSpec

SUM, CONCAT = ENCODERS["sum"], ENCODERS["concat"]
# What rounding may cost, as a share of the largest output. Three missing outputs are told apart by
# coefficients of up to 36, so the errors of 16 bits would be as large as the outputs.
TOLERANCE = {np.float64: 1e-9, np.float32: 1e-3, np.float16: 0.15}
SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)


@st.composite
def loss_patterns(draw, most=3):
    """k, r, which outputs are missing, and which parities are there: just enough of them or more."""
    k, r = draw(st.integers(2, 6)), draw(st.integers(1, most))
    missing = draw(st.sets(st.integers(0, k - 1), max_size=min(k, r)))
    there = draw(st.sets(st.integers(0, r - 1), min_size=len(missing)))
    return k, r, missing, there


def group(k, shape, dtype, seed):
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, shape).astype(dtype) for _ in range(k)]


def encoded(encoder, queries, weights):
    out = np.full_like(queries[0], np.nan)
    encoder.encode(queries, np.asarray(weights, float), out)
    return out


def without(all_of_them, missing):
    return [None if i in missing else one for i, one in enumerate(all_of_them)]


@settings(deadline=None)
@given(loss_patterns(), SHAPES, st.sampled_from([np.float32, np.float64]), st.integers(0, 2**32 - 1))
def test_a_linear_model_is_reconstructed_exactly_whatever_is_missing(pattern, shape, dtype, seed):
    k, r, missing, there = pattern
    queries = group(k, shape, dtype, seed)
    matrix = np.random.default_rng(seed + 1).uniform(-1, 1, (shape[-1], 7)).astype(dtype)
    outputs = [query @ matrix for query in queries]
    c = coefficients(k, r)
    parities = [encoded(SUM, queries, c[j]) @ matrix if j in there else None for j in range(r)]

    reconstructed = decode(c, without(outputs, missing), parities)

    assert set(reconstructed) == missing
    for i, output in reconstructed.items():
        assert (output.shape, output.dtype) == (outputs[i].shape, dtype)
        np.testing.assert_allclose(output, outputs[i], rtol=0, atol=TOLERANCE[dtype] * shape[-1])


@settings(deadline=None)
@given(loss_patterns(most=2), SHAPES, st.integers(0, 2**32 - 1))
def test_16_bits_are_reconstructed_as_well_as_they_are_rounded(pattern, shape, seed):
    k, r, missing, there = pattern
    outputs = group(k, shape, np.float16, seed)
    c = coefficients(k, r)
    parities = [encoded(SUM, outputs, c[j]) if j in there else None for j in range(r)]
    for i, output in decode(c, without(outputs, missing), parities).items():
        assert output.dtype == np.float16
        np.testing.assert_allclose(output, outputs[i], rtol=0, atol=TOLERANCE[np.float16])


@pytest.mark.parametrize(("k", "r"), [(2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (5, 4)])
def test_every_loss_of_at_most_r_of_the_k_and_r_is_mended(k, r):
    outputs = group(k, (3, 4), np.float64, k)
    c = coefficients(k, r)
    parities = [encoded(SUM, outputs, row) for row in c]
    for losses in range(r + 1):
        for lost in combinations(range(k + r), losses):
            missing = {i for i in lost if i < k}
            there = without(parities, {i - k for i in lost})
            reconstructed = decode(c, without(outputs, missing), there)
            assert set(reconstructed) == missing
            for i in missing:
                np.testing.assert_allclose(reconstructed[i], outputs[i], atol=1e-9)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.data())
def test_what_cannot_be_decoded_is_refused_and_what_can_is_not(k, r, data):
    outputs_there = data.draw(st.lists(st.booleans(), min_size=k, max_size=k))
    parities_there = data.draw(st.lists(st.booleans(), min_size=r, max_size=r))
    outputs = [np.ones(2) if there else None for there in outputs_there]
    parities = [np.ones(2) if there else None for there in parities_there]
    missing = outputs_there.count(False)
    assert is_decodable(outputs_there, parities_there) == (missing <= sum(parities_there))
    if is_decodable(outputs_there, parities_there):
        assert len(decode(coefficients(k, r), outputs, parities)) == missing
    else:
        with pytest.raises(
            ValueError, match=rf"{missing} outputs .* only {sum(parities_there)} of its parit"
        ):
            decode(coefficients(k, r), outputs, parities)


def test_the_subtraction_decoder_is_bit_for_bit_the_parity_less_the_others():
    a, b, parity = group(3, (2, 10), np.float32, seed=5)
    c = coefficients(3, 1)
    np.testing.assert_array_equal(decode(c, [a, None, b], [parity])[1], parity - a - b)


def test_the_lowest_parities_that_are_there_are_used():
    ones, nan = np.ones(2), np.full(2, np.nan)
    c = coefficients(2, 3)
    assert decode(c, [ones, None], [2 * ones, nan, nan])[1].tolist() == [1, 1]
    assert decode(c, [ones, None], [None, 3 * ones, nan])[1].tolist() == [1, 1]
    both = decode(c, [None, None], [2 * ones, 3 * ones, nan])
    np.testing.assert_allclose([both[0], both[1]], 1)


def test_decoding_leaves_what_it_is_given_as_it_was():
    outputs, c = group(3, (4,), np.float32, seed=1), coefficients(3, 2)
    parities = [encoded(SUM, outputs, row) for row in c]
    everything = [*outputs, *parities]
    before = [array.copy() for array in everything]
    for array in everything:
        array.setflags(write=False)
    for missing in ({0}, {2}, {0, 1}):
        assert set(decode(c, without(outputs, missing), parities)) == missing
    np.testing.assert_array_equal(everything, before)


def test_the_coefficients_are_powers_of_the_querys_number():
    assert coefficients(4, 3).tolist() == [[1, 1, 1, 1], [1, 2, 3, 4], [1, 4, 9, 16]]
    for k, r in [(1, 1), (2, 0)]:
        with pytest.raises(ValueError, match="k is 2 or more, r is 1 or more"):
            coefficients(k, r)


def test_one_groups_coefficients_cannot_change_anothers():
    with pytest.raises(ValueError, match="read-only"):
        coefficients(2, 1)[0, 0] = 7


@settings(deadline=None)
@given(
    st.integers(2, 5),
    SHAPES,
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.integers(8, 2000),
    st.data(),
)
def test_the_sum_is_the_same_in_blocks_of_any_size(k, shape, dtype, block_bytes, data):
    queries = group(k, shape, dtype, seed=k)
    weights = data.draw(st.lists(st.sampled_from([1.0, -1.0, 2.0, 0.5, 0.0]), min_size=k, max_size=k))
    expected = np.tensordot(weights, np.asarray(queries, float), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "BLOCK_BYTES", block_bytes)
        np.testing.assert_allclose(encoded(SUM, queries, weights), expected, atol=10 * np.finfo(dtype).eps)


def test_arrays_that_do_not_lie_in_one_piece_are_summed_too(monkeypatch):
    monkeypatch.setattr(coding, "BLOCK_BYTES", 64)
    queries = [array[:, ::2] for array in group(3, (8, 20), np.float32, seed=2)]
    out = np.zeros((8, 20), np.float32)
    SUM.encode(queries, np.array([1.0, 2.0, 3.0]), out[:, 5:15])
    np.testing.assert_allclose(out[:, 5:15], queries[0] + 2 * queries[1] + 3 * queries[2], rtol=1e-5)
    assert not out[:, :5].any()
    assert not out[:, 15:].any()


def test_concat_of_two_images_by_hand():
    a = np.array([[[[0, 2, 4, 8], [1, 1, 3, 5]]]], np.float32)
    parity = encoded(CONCAT, [a, 10 * a], [1, 1])
    assert parity.tolist() == [[[[1, 6, 10, 60], [1, 4, 10, 40]]]]


def test_concat_of_four_images_by_hand():
    image = np.array([[[[0, 2, 4, 8], [2, 4, 0, 0], [1, 1, 1, 1], [5, 5, 9, 9]]]], np.float32)
    parity = encoded(CONCAT, [image, 10 * image, -image, image + 1], [1, 2, 3, 4])
    small = np.array([[2, 3], [3, 5]])
    assert parity.tolist() == [[np.block([[small, 10 * small], [-small, small + 1]]).tolist()]]


@settings(deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 3),
    st.sampled_from([(), (1,), (3,)]),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_concat_lays_small_images_in_a_grid_row_by_row(k, batch, channels, dtype):
    grid_rows, columns = {2: (1, 2), 3: (2, 2), 4: (2, 2), 5: (2, 3), 6: (2, 3)}.get(k, (3, 3))
    shape = (*channels, 2 * grid_rows, 3 * columns)
    CONCAT.check(TensorSpec("x", "FP32", shape), k)
    queries = group(k, (batch, *shape), dtype, seed=k)
    parity = encoded(CONCAT, queries, np.ones(k))
    for cell in range(grid_rows * columns):
        row, column = divmod(cell, columns)
        found = parity[..., 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        if cell < k:
            pixels = queries[cell].astype(float).reshape(batch, *channels, 2, grid_rows, 3, columns)
            np.testing.assert_allclose(found, pixels.mean(axis=(-3, -1)), atol=10 * np.finfo(dtype).eps)
        else:
            assert not found.any()


def test_a_parity_row_is_encoded_from_its_own_rows_alone():
    for encoder in ENCODERS.values():
        queries = group(3, (5, 3, 4, 4), np.float32, seed=3)
        together = encoded(encoder, queries, [1, 2, 3])
        for row in range(5):
            alone = encoded(encoder, [query[row : row + 1] for query in queries], [1, 2, 3])
            np.testing.assert_array_equal(together[row : row + 1], alone)


def test_encoders_are_called_by_their_names():
    assert {name: encoder.name for name, encoder in ENCODERS.items()} == {"sum": "sum", "concat": "concat"}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize(
    ("datatype", "shape", "sentence"),
    [
        ("INT64", (3, 4, 4), "input 'x' is INT64, whose values the .* encoder cannot add up; it takes FP16"),
        ("BOOL", (3, 4, 4), "input 'x' is BOOL"),
        ("FP32", (3, -1, 4), r"input 'x' has the shape \[3, -1, 4\], where -1 varies .* with a fixed shape"),
    ],
)
def test_inputs_that_cannot_be_encoded_are_refused(encoder, datatype, shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        encoder.check(TensorSpec("x", datatype, shape), 2)


@pytest.mark.parametrize(
    ("k", "shape", "sentence"),
    [
        (2, (10,), r"the shape \[10\], .* takes images: \[channels, height, width\] or \[height, width\]"),
        (2, (2, 3, 4, 4), "takes images"),
        (2, (3, 32, 33), "images of 32 x 33, .* a grid of 1 x 2 for k = 2; images of 32 x 32 would fit"),
        (4, (3, 33, 33), "a grid of 2 x 2 for k = 4; images of 32 x 32 would fit"),
        (3, (1, 4), "images of 2 x 4 would fit"),
        (5, (3, 32, 32), "a grid of 2 x 3 for k = 5; images of 32 x 30 would fit"),
    ],
)
def test_concat_refuses_what_is_no_image_or_does_not_fit_the_grid(k, shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        CONCAT.check(TensorSpec("x", "FP32", shape), k)


@pytest.mark.parametrize(
    ("encoder", "k", "shape"),
    [(SUM, 3, (7,)), (SUM, 5, ()), (CONCAT, 2, (3, 33, 32)), (CONCAT, 4, (8, 8)), (CONCAT, 3, (1, 2, 2))],
)
def test_inputs_that_fit_are_let_through(encoder, k, shape):
    for datatype in ("FP16", "FP32", "FP64"):
        encoder.check(TensorSpec("x", datatype, shape), k)


def test_the_server_can_code_without_torch():
    program = "import sys, serving_adapter.parity.coding; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
