"""The papers' models as they are served for the figures of the real server, with inputs that two cores bear.

| the paper | here |
|---|---|
| Inception-V3, colour images of 256 x 256 | the same network with random weights, 192 x 192 |
| Inception-ResNet-V2, the same images | the same network with random weights, 192 x 192 |
| DeepSpeech 2, TED talks, sizes differ | the same network with random weights, lognormal lengths |
| request, inter-op and intra-op parallelism | `instances`, `inter_op_threads`, `intra_op_threads` |
| 14 requests/s, and a slight change of it | `RATES_PER_S` |

DeepSpeech 2 has no parallel branches, so that its two knobs are `instances` and `intra_op_threads`. The
length of a talk's segments is not in the paper. Half of ours are shorter than 0.3 s, and the longest is four
times as long. By the profiles in `envs/scenarios/profiles`, 14 requests/s then take about half of what two
cores can serve of either model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving_adapter.load.sizes import Sizes, make_sizes

RATES_PER_S = (14.0, 20.0)
IMAGE_SIZE = 192  # pixels
CORES = 2  # of the machine that the knobs' values are made for


@dataclass(frozen=True)
class ModelUnderLoad:
    """One model of `rrl-serve`, its requests, and the two knobs of its landscape."""

    name: str  # in the catalogue
    label: str  # in pictures
    options: tuple[str, ...] = ()  # as rrl-serve --model-option takes them
    sizes_text: str = "fixed:32"  # as rrl-load --sizes takes them; for inputs of variable length
    knobs: tuple[str, str] = ("inter_op_threads", "instances")  # x and y
    fixed: Mapping[str, int] = field(default_factory=dict)  # the other knobs

    @property
    def sizes(self) -> Sizes:
        return make_sizes(self.sizes_text)

    @property
    def server_arguments(self) -> tuple[str, ...]:
        return tuple(part for text in self.options for part in ("--model-option", text))


INCEPTION = ModelUnderLoad(
    "inception_v3",
    "Inception-V3",
    (f"image_size={IMAGE_SIZE}",),
    fixed={"intra_op_threads": CORES, "max_batch_size": 1},
)
RESNET = ModelUnderLoad(
    "inception_resnet_v2",
    "Inception-ResNet-V2",
    (f"image_size={IMAGE_SIZE}",),
    fixed={"intra_op_threads": CORES, "max_batch_size": 1},
)
DEEPSPEECH = ModelUnderLoad(
    "deepspeech2",
    "DeepSpeech 2",
    (),
    "lognormal:30:0.5:120",  # frames of 10 ms
    ("intra_op_threads", "instances"),
    {"max_batch_size": 1},
)
