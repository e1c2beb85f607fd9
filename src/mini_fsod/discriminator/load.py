"""A discriminator from a name or a file.

    resnet50:IMAGENET1K_V2                    a ResNet of torchvision with weights it knows by name
    resnet50                                  the same with torchvision's default weights
    vit_small_patch16_224.dino                any model of timm, with the weights of that name
    moco_v2_800ep_pretrain.pth.tar            a file alone: a ResNet's, or one of `mini pretrain`
    resnet50:weights.pth                      a file of weights for a model of torchvision or timm,
    vit_small_patch14_dinov2:dinov2.pth       under the names of its library

A file alone holds a ResNet in one of the layouts of `layouts`; which one shows in its tensors.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from mini_fsod.checkpoint import hash_tensors
from mini_fsod.detector.backbone import (
    NARROW,
    RESNETS,
    default_normalisation,
    make_backbone,
)
from mini_fsod.detector.settings import BackboneSettings, Normalisation
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.discriminator.layouts import SPELLINGS, State, kind_of, read_file
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import is_file

SUFFIXES = (".safetensors", ".pth", ".pt", ".tar", ".bin")
TRANSFORMERS = ("vision_transformer", "eva", "deit")  # files of timm whose models have tokens


def load(
    source: str | Path,
    device: torch.device,
    normalisation: Normalisation | None = None,
    stride_in_1x1: bool = False,
    crop: int | None = None,
) -> Discriminator:
    """The discriminator that a name or a file stands for (the spellings above), on the device.

    `normalisation` None: as the library's own weights want it, ImageNet's for ResNets. Caffe's
    weights need `CAFFE` and `stride_in_1x1`. `crop`: boxes are cut out at this size (see
    `Discriminator`); None: as a file of `mini pretrain` says, else not. Random numbers of the
    caller are not touched.
    """
    name, weights = parse(source)
    settings = BackboneSettings(name or "", "frozen", stride_in_1x1)
    body: LastMap | _Tokens
    with torch.random.fork_rng(devices=[]):  # new weights are drawn, then written over
        if isinstance(weights, Path) and (name is None or name in (*RESNETS, NARROW)):
            settings, body, own_crop = _resnet_of(weights, settings)
            crop = crop or own_crop
        elif name in (*RESNETS, NARROW):
            body = LastMap(make_backbone(settings, weights))
        else:
            body = _timm_body(settings, weights)
    normalisation = normalisation or default_normalisation(settings.name)
    state = body.state_dict()
    said = f"{settings} {normalisation} {crop} {hash_tensors(state.values())} {list(state)}"
    identity = hash_tensors([torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8)])[:16]
    found = Discriminator(body, body.dimension, body.stride, normalisation, identity, crop)
    found.to(device)
    if device.type == "cuda":
        found.to(memory_format=torch.channels_last)
    return found


def parse(source: str | Path) -> tuple[str | None, str | Path | None]:
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
        raise UserError(f"{path}: there is no such file of weights.", SPELLINGS)
    return path


# Networks


class LastMap(nn.Module):
    """The last of a backbone's maps."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.dimension = int(net.channels[-1])
        self.stride = 32

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.net(x)[-1]
        return last


class _Tokens(nn.Module):
    """The patch tokens of a vision transformer's last block, normed, as a map.

    The canvas is filled up with zeros to whole patches. Positions are interpolated to the canvas.
    Padding takes part in the attention, as every other patch: canvases should fit their images.
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
    """A ResNet whose weights lie in a file of any layout, what it is, and the crop it wants."""
    header, state = read_file(path)
    kind = header.backbone if header else kind_of(state)
    fix = "A file alone must hold a ResNet under torchvision's names; others are NAME:FILE."
    if kind is None:
        raise UserError(f"{path}: these are not the weights of a ResNet.", fix)
    if settings.name not in ("", kind):
        raise UserError(f"{path}: these are weights of {kind}, not of {settings.name}.", fix)
    settings = replace(settings, name=kind, norm=header.norm if header else "frozen")
    if settings.norm == "frozen":
        return settings, LastMap(_backbone(settings, path, state)), header.crop if header else None
    net = make_backbone(settings)
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{path}: the weights do not fit: {error}", "Copy it again.") from error
    return settings, LastMap(net), header.crop if header else None


def _backbone(settings: BackboneSettings, path: Path, state: State) -> nn.Module:
    """A backbone with the weights that were found in a file, whatever lay around them there."""
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "weights.safetensors"
        save_file({name: value.contiguous().clone() for name, value in state.items()}, plain)
        try:
            return make_backbone(settings, plain)
        except UserError as error:
            raise UserError(error.what.replace(str(plain), str(path)), error.fix) from None


def _timm_body(settings: BackboneSettings, weights: str | Path | None) -> LastMap | _Tokens:
    """A model of timm: transformers give their tokens, all others their last map."""
    name = settings.name
    timm = _timm(name)
    if isinstance(weights, str):
        raise UserError(f'There is no file "{weights}" of weights for {name}.', SPELLINGS)
    plain = name.split(".")[0]
    if not timm.is_model(plain):
        near = nearest(plain, [*timm.list_models(), *RESNETS])
        raise UserError(f'There is no model "{plain}" in torchvision or timm.{near}', SPELLINGS)
    state = None if weights is None else read_file(weights)[1]
    try:
        if not timm.models.is_model_in_modules(plain, TRANSFORMERS):
            if weights is None or state is None:
                return LastMap(make_backbone(settings, "pretrained"))
            return LastMap(_backbone(settings, weights, state))
        if settings.stride_in_1x1:
            raise UserError(f"{name} has no 1x1 convolution to carry the stride.", "Leave it out.")
        net = timm.create_model(
            name, pretrained=state is None, num_classes=0, dynamic_img_size=True
        )
        if state is not None:
            # timm's own way from published names to its own; it does not mind what is missing
            renamed = sys.modules[type(net).__module__].checkpoint_filter_fn(state, net)
            missing, _ = net.load_state_dict(renamed, strict=False)
            if missing:
                raise ValueError(f"{len(missing)} tensors are missing, the first is {missing[0]}.")
        return _Tokens(net)
    except (RuntimeError, AttributeError, ValueError, AssertionError, OSError) as error:
        if weights is not None:
            fix = "Check that the file belongs to the name."
            raise UserError(f"{weights}: not the weights of {name}: {error}", fix) from error
        raise UserError(
            f"The weights of {name} could not be had: {error}",
            "Without a network, fetch the file elsewhere and give it as NAME:FILE.",
        ) from error


def _timm(name: str) -> Any:
    try:
        import timm
    except ImportError as error:
        raise UserError(
            f'"{name}" is no file and no ResNet of torchvision; timm, which may know it, is not '
            "installed.",
            f"pip install 'mini-fsod[timm]'. {SPELLINGS}",
        ) from error
    return timm
