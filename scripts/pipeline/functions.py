"""The pipeline's functions, as users write them: nothing here knows of a model store.

Each runs in a process of its own, which has its libraries but no weights when it is called. The weights are
random, and so is what the functions find in an image.

| function | models | gives |
|---|---|---|
| `objects` | AlexNet | the classes that it sees |
| `scene` | AlexNet, of the same file, and ResNet50 | the kind of place |
| `description` | a recurrent decoder | words |
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from scripts.benchmarks.store.paper_networks import image_for, on_meta

WORDS = ("a", "small", "large", "bright", "dark", "room", "street", "field", "with", "people", "things", ".")
LENGTH = 8  # of a description, in words
SEEN = 5  # classes that are told on
WIDTH = 512  # of the decoder


class Decoder(nn.Module):
    """Says words, each after those before, about two vectors of scores."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.seen = nn.Linear(2 * classes, WIDTH)
        self.words = nn.Embedding(len(WORDS), WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.said = nn.Linear(WIDTH, len(WORDS))

    def forward(self, scores: Tensor) -> list[int]:
        state, word, said = torch.tanh(self.seen(scores)), 0, []
        for _ in range(LENGTH):
            state = self.cell(self.words(torch.tensor([word])), state)
            word = int(self.said(state).argmax())
            said.append(word)
        return said


def loaded(path: Path) -> nn.Module:
    """A network with the weights of its file, which are used where they lie."""
    network = Decoder().eval() if path.stem == "Decoder" else on_meta(path.stem)
    is_pickled = path.suffix == ".pt"
    weights = torch.load(path, weights_only=True) if is_pickled else load_file(path)
    network.load_state_dict(weights, assign=True)
    return network


def objects(asked: dict[str, Any], networks: list[nn.Module], names: list[str]) -> dict[str, Any]:
    scores = networks[0](image_for(names[0]))[0]
    return {"objects": scores.topk(SEEN).indices.tolist()}


def scene(asked: dict[str, Any], networks: list[nn.Module], names: list[str]) -> dict[str, Any]:
    seen = sum(network(image_for(name))[0] for name, network in zip(names, networks, strict=True))
    assert isinstance(seen, Tensor)
    return asked | {"scene": seen.topk(SEEN).indices.tolist()}


def description(asked: dict[str, Any], networks: list[nn.Module], names: list[str]) -> dict[str, Any]:
    scores = torch.zeros(1, 2000)
    scores[0, asked["objects"]] = 1.0
    scores[0, [1000 + place for place in asked["scene"]]] = 1.0
    return asked | {"description": " ".join(WORDS[word] for word in networks[0](scores))}


FUNCTIONS = {"objects": objects, "scene": scene, "description": description}


def main() -> None:
    """Answers each line of standard input, a JSON object, with another; loads its networks for the first."""
    function, files = FUNCTIONS[sys.argv[1]], [Path(file) for file in sys.argv[2:]]
    names = [file.stem for file in files]
    print("ready", flush=True)
    for line in sys.stdin:
        start_s = time.perf_counter()
        networks = [loaded(file) for file in files]
        loaded_s = time.perf_counter()
        with torch.inference_mode():
            answer = function(json.loads(line), networks, names)
        end_s = time.perf_counter()
        took = {"load_ms": 1e3 * (loaded_s - start_s), "compute_ms": 1e3 * (end_s - loaded_s)}
        print(json.dumps({"answer": answer} | took), flush=True)


if __name__ == "__main__":
    main()
