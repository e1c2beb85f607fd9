"""Files of weights: ours, which describe themselves, and the layouts of others.

A ResNet may lie under torchvision's names (.pth, .safetensors), or as MoCo v2's checkpoints have it
(`state_dict`, `module.encoder_q.`), or wrapped likewise by other training scripts. Nothing in a
file is ever run.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from mini_fsod.checkpoint import About
from mini_fsod.detector.backbone import NARROW
from mini_fsod.detector.settings import Norm
from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes

FORMAT = 1
SPELLINGS = (
    "Give resnet50:IMAGENET1K_V2, the name of a timm model such as vit_small_patch16_224.dino, a "
    "file of weights, or NAME:FILE."
)

# Where training scripts put a network's weights, and how they call the part that is wanted: the
# query encoder of MoCo v2, the base encoder of MoCo v3, the backbone of DINO
HOLDERS = ("state_dict", "model", "teacher")
PREFIXES = ("module.", "encoder_q.", "base_encoder.", "backbone.")

# (bottleneck blocks, blocks of layer2, blocks of layer3, channels of the stem): the ResNet
KINDS = {
    (False, 2, 2, 64): "resnet18",
    (False, 4, 6, 64): "resnet34",
    (True, 4, 6, 64): "resnet50",
    (True, 4, 23, 64): "resnet101",
    (True, 8, 36, 64): "resnet152",
    (False, 2, 2, 16): NARROW,
}

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Header:
    """What a file of `mini pretrain` says of itself."""

    backbone: str
    norm: Norm  # "group", or "frozen" for BatchNorm with the statistics of training
    crop: int | None  # boxes are to be cut out, at this size; None: aligned on the picture's map
    about: About


def save(path: Path, net: nn.Module, header: Header) -> None:
    """Write a backbone so that `load` reads it. The same weights give the same bytes."""
    said = json.dumps({"format": FORMAT, "discriminator": asdict(header)})
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    write_bytes(path, to_bytes(state, {"mini": said}))


def read_header(path: Path) -> Header | None:
    """What a file of `mini pretrain` says of itself; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, "pt") as content:
            said = json.loads((content.metadata() or {}).get("mini", "{}"))
        if "settings" in said:
            raise UserError(f"{path}: this is a detector.", "Give a file of `mini pretrain`.")
        if "discriminator" not in said:
            return None
        if said["format"] > FORMAT:
            raise UserError(f"{path}: written by a later mini.", "Update mini.")
        return Header(**said["discriminator"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}).", "Copy or fetch it again.") from None


def read_file(path: Path) -> tuple[Header | None, State]:
    """(what it says of itself, the network's tensors without what was wrapped around them)."""
    header = read_header(path)
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            # training scripts keep their arguments in the file; a Namespace can do no harm
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error) and "Unsupported" not in str(error):
            raise UserError(f"{path}: not a file of weights ({error}).", SPELLINGS) from None
        raise UserError(
            f"{path}: the file holds more than tensors, and reading it could run any program.",
            "If you trust it: python -c \"import torch; torch.save(torch.load('"
            f"{path}', 'cpu', weights_only=False)['state_dict'], 'weights.pth')\", and give "
            "weights.pth.",
        ) from None
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}).", "Copy or fetch it again.") from None
    return header, unwrapped(path, content)


def unwrapped(path: Path, content: Any) -> State:
    """The tensors of the network itself under its own names; a classifier or head `fc` is left out.

    Of MoCo's `module.encoder_q.layer1.0.conv1.weight` stays `layer1.0.conv1.weight`.
    """
    for holder in HOLDERS:
        if isinstance(content, Mapping) and isinstance(content.get(holder), Mapping):
            content = content[holder]
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: there are no named tensors in it.", SPELLINGS)
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    for prefix in PREFIXES:
        inner = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        state = inner or state
    return {name: value for name, value in state.items() if not name.startswith("fc.")}


def kind_of(state: Mapping[str, Tensor]) -> str | None:
    """Which ResNet these tensors belong to; None for none of them."""
    if "conv1.weight" not in state:
        return None

    def blocks(layer: str) -> int:
        return len({name.split(".")[1] for name in state if name.startswith(f"{layer}.")})

    deep = "layer1.0.conv3.weight" in state
    return KINDS.get((deep, blocks("layer2"), blocks("layer3"), len(state["conv1.weight"])))
