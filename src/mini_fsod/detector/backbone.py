"""Backbones: torchvision's ResNets and any `features_only` model of timm.

Every backbone maps normalised images (B, 3, H, W) to four feature maps of strides 4, 8, 16, 32,
which have `channels` channels.
"""

from __future__ import annotations

import sys
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, resnet
from torchvision.ops import FrozenBatchNorm2d

from mini_fsod.detector.anchors import STRIDES
from mini_fsod.detector.convolution import FoldedConv
from mini_fsod.detector.download import fetch_timm, fetch_torchvision
from mini_fsod.detector.settings import IMAGENET, BackboneSettings, Normalisation
from mini_fsod.detector.weights import (
    SUFFIXES,
    WeightsFile,
    first_line,
    load_weights,
    read_weights,
)
from mini_fsod.errors import UserError, nearest

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
NARROW = "resnet18-narrow"  # a quarter of the channels: trains from scratch on a CPU in minutes
STAGES = ("stem", "layer1", "layer2", "layer3", "layer4")
PRETRAINED = ("pretrained", "DEFAULT")  # timm's own weights of a model
# timm's functions that convert the names of published files; a module of models has one or none
TIMM_FILTERS = (
    "checkpoint_filter_fn", "pretrained_filter_fn", "_filter_fn", "_filter_torchvision_pretrained",
)  # fmt: skip
GROUPS = 32  # most groups of GroupNorm; each has at least two channels


class FoldedBlock(nn.Module):
    """A residual block of torchvision's ResNets with folded norms; the same parameter names."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        names = [n for n in ("conv1", "conv2", "conv3") if hasattr(block, n)]
        for name in names:
            conv, norm = getattr(block, name), getattr(block, name.replace("conv", "bn"))
            setattr(self, name, FoldedConv(conv, norm))
        *self.first_convs, self.last_conv = names
        self.downsample = block.downsample and nn.Sequential(FoldedConv(*block.downsample))

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.downsample is None else self.downsample(x)
        for name in self.first_convs:
            x = getattr(self, name)(x, relu=True)
        out: Tensor = getattr(self, self.last_conv)(x, residual, relu=True)
        return out


class ResNet(nn.Module):
    """A torchvision ResNet without its classifier; the parameters keep torchvision's names."""

    def __init__(self, net: Any, frozen_stages: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = net.conv1, net.bn1
        self.layer1, self.layer2 = net.layer1, net.layer2
        self.layer3, self.layer4 = net.layer3, net.layer4
        self.folded = isinstance(net.bn1, nn.BatchNorm2d | FrozenBatchNorm2d)
        if self.folded:
            self.conv1, self.bn1 = FoldedConv(net.conv1, net.bn1), nn.Identity()
            for name in STAGES[1:]:
                setattr(self, name, nn.Sequential(*map(FoldedBlock, getattr(net, name))))
        last = [layer[-1] for layer in (self.layer1, self.layer2, self.layer3, self.layer4)]
        self.channels = [getattr(block, "conv3", block.conv2).weight.shape[0] for block in last]
        stem = nn.ModuleList([self.conv1, self.bn1])
        for stage in [stem, *(getattr(self, s) for s in STAGES[1:])][:frozen_stages]:
            stage.requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.conv1(x, relu=True) if self.folded else F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        maps = []
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
            maps.append(x)
        return maps


class TimmBackbone(nn.Module):
    """A timm model with `features_only`; its maps of strides 4 to 32 in NCHW."""

    def __init__(self, net: Any, frozen_stages: int) -> None:
        super().__init__()
        self.net = net
        self.channels: list[int] = net.feature_info.channels()
        self.channels_last = str(getattr(net, "output_fmt", "NCHW")).endswith("NHWC")
        names = [n.replace(".", "_") + "_" for n in net.feature_info.module_name()]
        # Freeze all parameters registered (hence used) before the first stage that trains.
        first_trained = names[frozen_stages - 1] if frozen_stages <= len(names) else None
        for name, parameter in net.named_parameters():
            if frozen_stages == 0 or (
                first_trained and name.replace(".", "_").startswith(first_trained)
            ):
                break
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.net(x)
        return [m.permute(0, 3, 1, 2) for m in maps] if self.channels_last else list(maps)


def make_backbone(
    settings: BackboneSettings, weights: str | Path | WeightsFile | None = None
) -> ResNet | TimmBackbone:
    """The backbone with random weights, those of a file, or those of its library.

    `weights`: None: random; the name of torchvision weights ("IMAGENET1K_V2", "DEFAULT");
    "pretrained" for timm's default ones; or a file (`read_weights`).
    """
    if isinstance(weights, Path) or (isinstance(weights, str) and weights.endswith(SUFFIXES)):
        weights = read_weights(Path(weights))
    if settings.norm == "group" and (weights is not None or settings.frozen_stages):
        raise UserError(
            "GroupNorm is for training from random weights, with no frozen stages.",
            "Use frozen BatchNorm with weights, or neither weights nor frozen stages.",
        )
    if not 0 <= settings.frozen_stages <= len(STAGES):
        raise UserError(
            f"frozen_stages is {settings.frozen_stages}.", "Use 0 (none) to 5 (the whole backbone)."
        )
    if settings.name in (*RESNETS, NARROW):
        return ResNet(_torchvision_resnet(settings, weights), settings.frozen_stages)
    return TimmBackbone(_timm_model(settings, weights), settings.frozen_stages)


def _torchvision_resnet(settings: BackboneSettings, weights: str | WeightsFile | None) -> Any:
    norm: Any = _group_norm if settings.norm == "group" else nn.BatchNorm2d
    net: Any
    if settings.name == NARROW:
        net = _narrow_resnet(norm)
    else:
        net = get_model(settings.name, weights=None, norm_layer=norm)
    if isinstance(weights, WeightsFile):
        load_weights(net, weights, settings.name)
    elif weights is not None and settings.name == NARROW:
        raise UserError(
            f"torchvision has no weights of {NARROW}.",
            "Train it from random weights with norm: group, or give a .safetensors or .pth file.",
        )
    elif weights is not None:
        known = get_model_weights(settings.name)
        if weights not in known.__members__:
            raise UserError(
                f'"{weights}" is neither a file nor weights of {settings.name} in torchvision.',
                f"Use {', '.join(known.__members__)}, or a .safetensors or .pth file.",
            )
        path = fetch_torchvision(settings.name, known[weights].url)
        load_weights(net, read_weights(path), settings.name)
    if settings.stride_in_1x1:
        for layer in (net.layer2, net.layer3, net.layer4):
            block = layer[0]
            if not isinstance(block, resnet.Bottleneck):
                raise UserError(
                    f"{settings.name} has no 1x1 convolutions to move the stride to.",
                    "`caffe: true` is for resnet50 and larger.",
                )
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return net


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(GROUPS, channels // 2), channels)


def _narrow_resnet(norm: Any) -> Any:
    """ResNet-18 with 16, 32, 64 and 128 channels in place of 64 to 512."""
    net: Any = resnet.ResNet(resnet.BasicBlock, [2, 2, 2, 2], norm_layer=norm)
    net.inplanes = 16
    net.conv1 = nn.Conv2d(3, 16, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.bn1 = norm(16)
    for stage, stride in enumerate((1, 2, 2, 2)):
        layer = net._make_layer(resnet.BasicBlock, 16 * 2**stage, 2, stride)
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        setattr(net, f"layer{stage + 1}", layer)
    return net


def _timm_model(settings: BackboneSettings, weights: str | WeightsFile | None) -> Any:
    timm = import_timm(settings.name)
    if settings.stride_in_1x1 or settings.norm == "group":
        raise UserError(
            f'"{settings.name}" is a timm model, whose norms and strides are fixed.',
            "`caffe: true` and `norm: group` are for resnet18 to resnet152.",
        )

    def make(**options: Any) -> Any:
        create = partial(timm.create_model, settings.name, features_only=True, **options)
        try:
            return create(strict_img_size=False)  # Swin: images of any size
        except TypeError:  # other models do not take it
            return create()

    try:
        strides = make().feature_info.reduction()
        if not set(STRIDES) <= set(strides):
            raise ValueError(
                f"its feature maps have strides {strides}; 4, 8, 16 and 32 are needed."
            )
        net = make(out_indices=[strides.index(s) for s in STRIDES])
        if weights is not None:
            load_timm_weights(net, weights, settings.name, timm.create_model(settings.name))
        net = timm.layers.freeze_batch_norm_2d(net)
        with torch.no_grad():
            net(torch.zeros(1, 3, 64, 96))  # fails for a model of one image size
    except UserError:
        raise
    except Exception as error:  # timm raises anything
        raise UserError(
            f'The timm model "{settings.name}" cannot be a backbone: {first_line(error)}',
            "Use another of timm.list_models() with features_only and images of any size.",
        ) from error
    return net


def load_timm_weights(
    net: nn.Module, weights: str | WeightsFile, name: str, whole: nn.Module
) -> None:
    """Load a file, or timm's own weights ("pretrained"), into a timm model or its features.

    timm itself would ignore missing tensors. Its conversion of published names needs the whole
    model; some names of features have "_" for ".", or begin with "model." or "body.".
    """
    if isinstance(weights, str):
        if weights not in PRETRAINED:
            raise UserError(
                f'"{weights[:200]}" is neither a file nor weights of {name} in timm.',
                'Use "pretrained", or a .safetensors or .pth file.',
            )
        known = import_timm(name).models.get_pretrained_cfg(name)
        weights = read_weights(fetch_timm(name, known))

    def flat(tensor: str) -> str:
        return tensor.removeprefix("model.").removeprefix("body.").replace(".", "_")

    module = sys.modules[type(whole).__module__]
    convert = next((getattr(module, f) for f in TIMM_FILTERS if hasattr(module, f)), None)
    tensors = weights.tensors
    try:
        if convert is not None:
            arguments = (tensors, whole)[: len(signature(convert).parameters)]
            tensors = convert(*arguments)
    except Exception as error:  # tensors of other models make it raise anything
        raise UserError(
            f"{weights.path}: these weights do not fit {name}: {first_line(error)!r}.",
            "Use the weights of exactly this model, with the tensor names of timm.",
        ) from error
    names = {flat(tensor): tensor for tensor in net.state_dict()}
    others = {flat(tensor) for tensor in whole.state_dict()} - names.keys()
    unused = {tensor for tensor in tensors if flat(tensor) in others}
    tensors = {names.get(flat(tensor), tensor): value for tensor, value in tensors.items()}
    load_weights(net, WeightsFile(weights.path, tensors), name, unused)


def default_normalisation(name: str) -> Normalisation:
    """The normalisation of the library's own weights of this backbone."""
    if name in (*RESNETS, NARROW):
        return IMAGENET
    known = import_timm(name).models.get_pretrained_cfg(name)
    return IMAGENET if known is None else Normalisation(tuple(known.mean), tuple(known.std))


def check_backbone(name: str) -> None:
    """Refuse a backbone that neither torchvision nor timm knows, before anything is computed."""
    if name not in (*RESNETS, NARROW):
        try:
            import_timm(name)
        except UserError as error:
            raise UserError(f"detector.backbone: {error.what}", error.fix) from error


def import_timm(name: str) -> Any:
    """The package timm, for a model that is not torchvision's.

    Names that timm would look for elsewhere, such as "hf-hub:...", are unknown models too.
    """
    try:
        import timm
        import timm.layers
    except ImportError as error:
        raise UserError(
            f'"{name}" is not a ResNet of torchvision. timm may know it, but is not installed.'
            f"{nearest(name, RESNETS)}",
            'Run: pip install "mini-fsod[timm]", or use resnet18, 34, 50, 101 or 152.',
        ) from error
    model = name[:200].split(".")[0]
    if not timm.is_model(model):
        near = nearest(model, [*timm.list_models(), *RESNETS])
        raise UserError(
            f'There is no model "{model}" in torchvision or timm.{near}',
            "Use resnet18, 34, 50, 101 or 152, or one of timm.list_models(); a file of weights is "
            "given as FILE or NAME:FILE.",
        )
    return timm
