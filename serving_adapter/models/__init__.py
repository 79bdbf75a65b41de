"""The models that the server runs: a catalogue by name, the user's own modules, exported files.

Nothing here imports torch: the server's front process reads the catalogue, and only the process that
builds a model (`loading.load_model`) imports what it needs.
"""

from __future__ import annotations

CLASSIFIERS = ("mlp", "lenet5", "vgg11", "resnet18")
"""Those whose weights come from a file that names them."""

CATALOGUE: dict[str, str] = {
    "minilm": "serving_adapter.models.minilm:minilm",
    "efficientnet_lite0": "serving_adapter.models.vision:efficientnet_lite0",
    "inception_v3": "serving_adapter.models.vision:inception_v3",
    "inception_resnet_v2": "serving_adapter.models.vision:inception_resnet_v2",
    "vgg16": "serving_adapter.models.vision:vgg16",
    "deepspeech2": "serving_adapter.models.deepspeech2:deepspeech2",
    **{name: f"serving_adapter.models.classifiers:{name}" for name in CLASSIFIERS},
    "noop": "serving_adapter.models.synthetic:noop",
    "sleep": "serving_adapter.models.synthetic:sleep",
    "burn": "serving_adapter.models.synthetic:burn",
}
"""Name of a model -> `module:factory`, the same form in which a user names a factory of their own."""
