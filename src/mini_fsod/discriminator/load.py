"""A discriminator from a name or a file.

    resnet50:IMAGENET1K_V1                    a ResNet of torchvision with weights it knows by name
    resnet50                                  the same with torchvision's default weights
    vit_small_patch16_224.dino                any model of timm, with the weights of that name
    moco_v2_800ep_pretrain.pth.tar            a file alone: a ResNet's, or one of `mini pretrain`
    resnet50:weights.pth                      a file of weights for a model of torchvision or timm,
    vit_small_patch14_dinov2:dinov2.pth       under the names of its library

A file alone holds a ResNet: one that describes itself (`mini pretrain`), torchvision's names (.pth,
.safetensors), or those of a training script around them, such as MoCo v2's (`state_dict`,
`module.encoder_q.`). Which ResNet it is follows from its tensors. No code in a file is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from mini_fsod.checkpoint import About
from mini_fsod.detector.backbone import (
    NARROW,
    RESNETS,
    default_normalisation,
    import_timm,
    load_timm_weights,
    make_backbone,
)
from mini_fsod.detector.settings import BackboneSettings, Norm, Normalisation
from mini_fsod.detector.weights import SUFFIXES, first_line, load_weights, read_weights
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, write_bytes

FORMAT = 1
SPELLINGS = (
    "Give resnet50:IMAGENET1K_V1, the name of a timm model such as vit_small_patch16_224.dino, a "
    "file of weights, or NAME:FILE."
)
TRANSFORMERS = ("vision_transformer", "eva", "deit")  # timm's modules of models with patch tokens

# (bottleneck blocks, blocks of layer2, blocks of layer3, channels of the stem): the ResNet
KINDS = {
    (False, 2, 2, 64): "resnet18",
    (False, 4, 6, 64): "resnet34",
    (True, 4, 6, 64): "resnet50",
    (True, 4, 23, 64): "resnet101",
    (True, 8, 36, 64): "resnet152",
    (False, 2, 2, 16): NARROW,
}


@dataclass(frozen=True, slots=True)
class DiscriminatorHeader:
    """What a file of `mini pretrain` says of itself."""

    backbone: str
    norm: Norm  # "group", or "frozen" for BatchNorm with the statistics of training
    crop: int | None  # of the boxes it was trained for: `discriminator.crop: file`
    about: About


def load_discriminator(
    source: str | Path,
    device: torch.device,
    normalisation: Normalisation | None = None,
    stride_in_1x1: bool = False,
    crop: int | Literal["file"] | None = "file",
) -> Discriminator:
    """The discriminator that a name or a file stands for (the spellings above), on the device.

    `normalisation` None: as the library's own weights want it, ImageNet's for ResNets. Caffe's
    weights need `CAFFE` and `stride_in_1x1`. `crop`: boxes are cropped to this size, None: they are
    not (see `Discriminator`); "file": as a file of `mini pretrain` says, else not. Random number
    generators of the caller keep their states.
    """
    name, weights = parse_source(source)
    settings = BackboneSettings(name or "", "frozen", stride_in_1x1)
    body: LastMap | _Tokens
    file_crop: int | None = None
    with torch.random.fork_rng(devices=[]):  # new weights are drawn, then overwritten
        if name is not None and name not in (*RESNETS, NARROW):
            body = _timm_body(settings, weights)
        elif isinstance(weights, Path):
            settings, body, file_crop = _resnet_of(weights, settings)
        else:
            body = LastMap(make_backbone(settings, weights))
    normalisation = normalisation or default_normalisation(settings.name)
    used = file_crop if crop == "file" else crop
    found = Discriminator(body, body.dimension, body.stride, normalisation, used)
    found.to(device)
    found.to(memory_format=torch.channels_last)
    return found


def parse_source(source: str | Path) -> tuple[str | None, str | Path | None]:
    """(name, weights): the name is None for a file alone, the weights a Path for a file."""
    text = str(source)
    if isinstance(source, Path) or is_file(Path(text)):
        return None, _existing(Path(text))
    name, colon, weights = text.partition(":")
    if colon and name and weights:
        named = not weights.endswith(SUFFIXES) and not is_file(Path(weights))
        return name, weights if named else _existing(Path(weights))
    if text.endswith(SUFFIXES) or "/" in text or colon or not text:
        return None, _existing(Path(text))
    return text, "DEFAULT" if text in (*RESNETS, NARROW) else None


def _existing(path: Path) -> Path:
    if not is_file(path):
        raise UserError(f"{path}: there is no such weights file.", SPELLINGS)
    return path


# Networks


class LastMap(nn.Module):
    """The last feature map of a backbone."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.dimension = int(net.channels[-1])
        self.stride = 32

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.net(x)[-1]
        return last


class _Tokens(nn.Module):
    """The normalised patch tokens of a vision transformer's last block, as a feature map.

    The canvas is padded with zeros to whole patches, and positions are interpolated to it. Padding
    takes part in the attention like any patch: canvases should fit their images.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.dimension = int(net.embed_dim)
        self.stride = int(net.patch_embed.patch_size[0])

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        x = F.pad(x, (0, -width % self.stride, 0, -height % self.stride))
        (last,) = self.net.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
        found: Tensor = last
        return found


def _resnet_of(
    path: Path, settings: BackboneSettings
) -> tuple[BackboneSettings, LastMap, int | None]:
    """A ResNet with the weights of a file of any layout, its settings, and the file's crop size."""
    header, weights = read_discriminator_header(path), read_weights(path, SPELLINGS)
    kind = header.backbone if header else resnet_name(weights.tensors)
    fix = "A file alone must hold a ResNet under torchvision's names; others are NAME:FILE."
    if kind is None:
        raise UserError(f"{path}: these are not the weights of a ResNet.", fix)
    if settings.name not in ("", kind):
        raise UserError(f"{path}: these are weights of {kind}, not of {settings.name}.", fix)
    settings = replace(settings, name=kind, norm=header.norm if header else "frozen")
    if settings.norm == "frozen":
        net = make_backbone(settings, weights)
    else:
        net = make_backbone(settings)
        load_weights(net, weights, kind)
    return settings, LastMap(net), header.crop if header else None


def _timm_body(settings: BackboneSettings, weights: str | Path | None) -> LastMap | _Tokens:
    """A model of timm: patch tokens of transformers, the last feature map of others."""
    name = settings.name
    timm = import_timm(name)
    if isinstance(weights, str):
        raise UserError(f'There is no weights file "{weights}" for {name}.', SPELLINGS)
    file = None if weights is None else read_weights(weights, SPELLINGS)
    if not timm.models.is_model_in_modules(name.split(".")[0], TRANSFORMERS):
        return LastMap(make_backbone(settings, file or "pretrained"))
    if settings.stride_in_1x1:
        raise UserError(
            f"{name} has no 1x1 convolutions to move the stride to.",
            "Set discriminator.caffe to false.",
        )
    try:
        net = timm.create_model(name, num_classes=0, dynamic_img_size=True)
        load_timm_weights(net, file or "pretrained", name, net)
        return _Tokens(net)
    except UserError:
        raise
    except Exception as error:  # timm raises anything
        raise UserError(
            f"{name} cannot be a discriminator: {first_line(error)}", SPELLINGS
        ) from error


# Files of weights


def save_discriminator(path: Path, net: nn.Module, header: DiscriminatorHeader) -> None:
    """Write a backbone for `load_discriminator`. The same weights give the same bytes."""
    about = json.dumps({"format": FORMAT, "discriminator": asdict(header)})
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    write_bytes(path, to_bytes(state, {"mini": about}))


def read_discriminator_header(path: Path) -> DiscriminatorHeader | None:
    """What a file of `mini pretrain` says of itself; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, "pt") as content:
            about = json.loads((content.metadata() or {}).get("mini", "{}"))
        if "settings" in about:
            raise UserError(f"{path}: this is a detector.", "Give a file of `mini pretrain`.")
        if "discriminator" not in about:
            return None
        if about["format"] > FORMAT:
            raise UserError(f"{path}: written by a later mini.", "Update mini.")
        header = DiscriminatorHeader(**about["discriminator"])
        if (
            header.backbone not in (*RESNETS, NARROW)
            or header.norm not in ("frozen", "group")
            or not (header.crop is None or (type(header.crop) is int and 8 <= header.crop <= 4096))
            or not isinstance(header.about, dict)
        ):
            raise ValueError("its description has values that `mini pretrain` does not write")
        return header
    except UserError:
        raise
    except Exception as error:  # safetensors, JSON, and values of any type
        raise UserError(
            f"{path}: cannot be read ({first_line(error)}).", "Copy or fetch it again."
        ) from None


def resnet_name(state: Mapping[str, Tensor]) -> str | None:
    """The ResNet that these tensors belong to; None if there is none."""
    if "conv1.weight" not in state:
        return None

    def blocks(layer: str) -> int:
        return len({name.split(".")[1] for name in state if name.startswith(f"{layer}.")})

    deep = "layer1.0.conv3.weight" in state
    channels = state["conv1.weight"].shape[:1].numel()
    return KINDS.get((deep, blocks("layer2"), blocks("layer3"), channels))
