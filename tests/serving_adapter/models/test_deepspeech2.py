"""DeepSpeech 2: shapes, and that a batch changes no answer."""

from __future__ import annotations

import pytest
import torch

from serving_adapter.models.loading import load_model
from serving_adapter.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("deepspeech2", {"hidden_size": "24", "layers": "5"})


@pytest.mark.parametrize(("frames", "steps"), [(1, 1), (8, 4), (101, 51)])
def test_two_frames_make_one_step_of_logits(model, frames, steps):
    assert model.run({"spectrogram": torch.randn(2, frames, 161)})["logits"].shape == (2, steps, 29)


def test_a_batch_of_two_equals_two_singles(model):
    frames = torch.randn(2, 30, 161)
    whole = model.run({"spectrogram": frames})["logits"]
    assert whole.std() > 1e-3
    single = torch.cat([model.run({"spectrogram": frames[i : i + 1]})["logits"] for i in range(2)])
    torch.testing.assert_close(whole, single, atol=1e-5, rtol=1e-5)


def test_requests_of_other_lengths_do_not_share_its_batches(model):
    assert model.inputs[0].pad_value is None
    assert model.inputs[0].shape == (-1, 161)


def test_every_layer_looks_both_ways(model):
    frames = torch.randn(1, 60, 161)
    changed = frames.clone()
    changed[:, -1] += 5.0
    first, last = (model.run({"spectrogram": x})["logits"][0, 0] for x in (frames, changed))
    assert not torch.equal(first, last)
