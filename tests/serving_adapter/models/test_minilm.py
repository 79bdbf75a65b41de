"""MiniLM: the embedding against an independent BERT in float64, and what a batch must not change."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from serving_adapter.models.loading import load_model
from serving_adapter.models.minilm import PACKAGE, UNKNOWN, VOCABULARY
from serving_adapter.models.model import Model
from serving_adapter.models.packed_linear import PackedLinear
from serving_adapter.models.weights import package_folder

FOLDER = package_folder(PACKAGE, "minilm", "") / "model"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("minilm", {})


def embed(model: Model, *requests: list[int]) -> torch.Tensor:
    """Embeds requests as one batch, padded to the longest."""
    longest = max(map(len, requests))
    rows = [ids + [0] * (longest - len(ids)) for ids in requests]
    return model.run({"token_ids": torch.tensor(rows, dtype=torch.int64)})["embedding"]


def words(text: str) -> list[int]:
    vocabulary = {w: i for i, w in enumerate((FOLDER / "vocab.txt").read_text("utf-8").splitlines())}
    return [101, *(vocabulary[word] for word in text.split()), 102]


def some_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(999, VOCABULARY, (length,), generator=generator).tolist()


def reference(ids: list[int]) -> torch.Tensor:
    """BERT as its paper has it, one request, one head at a time, in float64."""
    w = {
        name: t.double()
        for name, t in load_file(FOLDER / "model.safetensors").items()
        if t.is_floating_point()
    }

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    e = "embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][: len(ids)]
    x = norm(x + w[f"{e}.token_type_embeddings.weight"][0], f"{e}.LayerNorm")
    for i in range(6):
        layer = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for h in range(12):
            s = slice(32 * h, 32 * h + 32)
            heads.append(torch.softmax(q[:, s] @ k[:, s].T / math.sqrt(32), -1) @ v[:, s])
        attended = linear(torch.cat(heads, -1), f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
        inner = linear(x, f"{layer}.intermediate.dense")
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    return (mean / mean.norm()).float()


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 8, 13, 100, 512])
def test_it_is_the_published_network(model, length):
    ids = some_ids(length)
    assert_same(embed(model, ids)[0], reference(ids))


def test_sentences_of_like_meaning_lie_close(model):
    cat, kitten, market = embed(
        model,
        words("a cat sits on the mat"),
        words("a kitten is sitting on the rug"),
        words("stock prices fell sharply after the bank reported losses"),
    )
    assert cat @ kitten > 0.5 > 0.2 > cat @ market


@pytest.mark.parametrize("lengths", [[8, 8, 8], [3, 40, 1, 17], [512, 1], [5, 3]])
def test_a_batch_changes_no_answer(model, lengths):
    requests = [some_ids(length, seed) for seed, length in enumerate(lengths)]
    alone = torch.cat([embed(model, ids) for ids in requests])
    assert_same(embed(model, *requests), alone)
    assert_same(embed(model, *requests, some_ids(200))[:-1], alone)


def test_padding_inside_and_beyond_a_request_counts_for_nothing(model):
    ids = some_ids(9)
    padded = torch.tensor([ids + [0] * 20])
    assert_same(model.run({"token_ids": padded})["embedding"], embed(model, ids))


def test_ids_outside_the_vocabulary_are_read_as_unknown(model):
    ids = some_ids(6)
    outside = [*ids, VOCABULARY, -1, 2**62]
    assert torch.equal(embed(model, outside), embed(model, [*ids, UNKNOWN, UNKNOWN, UNKNOWN]))


@pytest.mark.parametrize("empty", [[0, 0, 0], []])
def test_a_request_of_nothing_but_padding_gets_zeros_and_spoils_no_other(model, empty):
    ids = some_ids(7)
    nothing, something = embed(model, empty, ids)
    assert not nothing.any()
    assert_same(something, embed(model, ids)[0])
    assert not embed(model, empty).any()


def test_packed_and_plain_layers_agree():
    layer = PackedLinear(48, 96)
    narrow = PackedLinear(96, 48)
    x, plain = torch.randn(16, 48), []
    with torch.inference_mode():
        for packed in (False, True):
            if packed:
                layer.pack()
                narrow.pack()
            plain.append((layer(x), layer.gelu(x), narrow.plus(layer(x), x)))
        for a, b in zip(*plain, strict=True):
            torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=1e-5)


def test_the_inputs_say_how_requests_are_padded_and_how_long_they_may_be(model):
    (spec,) = model.inputs
    assert (spec.datatype, spec.shape, spec.pad_value, spec.max_size) == ("INT64", (-1,), 0, 512)
    assert model.run(model.example(rows=2))["embedding"].shape == (2, 384)
    assert Path(FOLDER).name == "model"
