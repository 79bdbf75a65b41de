"""DeepSpeech 2: two convolutions over the spectrogram, five bidirectional GRUs, one letter a step.

Amodei et al., "Deep Speech 2", 2016. The weights are random (there are none to be had), the work is that
of the real network. Batch normalisation is left out: at inference it folds into the weights beside it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec

BINS = 161  # frequencies of a 20 ms window at 16 kHz
LETTERS = 29  # a-z, space, apostrophe, blank
CHANNELS = 32


def deepspeech2(hidden_size: int = 800, layers: int = 5, seed: int = 0) -> Model:
    """Takes frames of 10 ms, any number of them; answers half as many steps of logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = DeepSpeech2(hidden_size, layers)
    # No pad_value: a GRU that runs backwards starts in the padding, so it would change the answer.
    return Model(module, (TensorSpec("spectrogram", "FP32", (-1, BINS)),), ("logits",))


class DeepSpeech2(nn.Module):
    def __init__(self, hidden_size: int, layers: int) -> None:
        super().__init__()
        # Kernels are frames x bins: (B, 1, T, 161) -> (B, 32, T/2, 81) -> (B, 32, T/2, 41).
        self.conv1 = nn.Conv2d(1, CHANNELS, (11, 41), stride=(2, 2), padding=(5, 20))
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, (11, 21), stride=(1, 2), padding=(5, 10))
        widths = [CHANNELS * 41, *[hidden_size] * (layers - 1)]
        self.recurrent = nn.ModuleList(
            nn.GRU(width, hidden_size, batch_first=True, bidirectional=True) for width in widths
        )
        self.letters = nn.Linear(hidden_size, LETTERS)

    def forward(self, spectrogram: Tensor) -> Tensor:  # (B, T, 161) -> (B, ceil(T/2), 29)
        x = F.hardtanh(self.conv1(spectrogram.unsqueeze(1)), 0.0, 20.0)
        x = F.hardtanh(self.conv2(x), 0.0, 20.0)
        x = x.transpose(1, 2).flatten(2)
        for gru in self.recurrent:
            forwards, backwards = gru(x)[0].chunk(2, dim=-1)
            x = forwards + backwards
        return self.letters(x)
