"""Files of weights of backbones and discriminators: .safetensors, or .pth as PyTorch writes them.

Tensors have torchvision's or timm's names, bare or inside the checkpoint of a training script such
as MoCo v2's (`state_dict`, `module.encoder_q.`). No code in a file is ever run.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mini_fsod.errors import UserError
from mini_fsod.files import is_file

SUFFIXES = (".safetensors", ".pth", ".pt", ".tar", ".bin")

# Where training scripts store a network's weights, and the prefixes of the network wanted: the
# query encoder of MoCo v2, the base encoder of MoCo v3, the backbone of DINO
HOLDERS = ("state_dict", "model", "teacher")
PREFIXES = ("module.", "encoder_q.", "base_encoder.", "backbone.")


class WeightsFile(NamedTuple):
    """A file's path, for messages, and its tensors under the network's own names."""

    path: Path
    tensors: dict[str, Tensor]


def read_weights(path: Path, fix: str = "Check the path.") -> WeightsFile:
    """The tensors of a network, without a classifier or head `fc`; `fix` is for a wrong path."""
    if not is_file(path):
        raise UserError(f"{path}: there is no such file of weights.", fix)
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            # training scripts store their arguments; a Namespace is harmless
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error) and "Unsupported" not in str(error):
            raise UserError(f"{path}: not a file of weights ({error}).", fix) from None
        raise UserError(
            f"{path}: the file holds more than tensors, and reading it could run any program.",
            "If you trust it: python -c \"import torch; torch.save(torch.load('"
            f"{path}', 'cpu', weights_only=False)['state_dict'], 'weights.pth')\", and give "
            "weights.pth.",
        ) from None
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}).", "Copy or fetch it again.") from None
    # outside of a training script's checkpoint "backbone." is a part of a detector
    prefixes: Sequence[str] = PREFIXES[:-1]
    for holder in HOLDERS:
        if isinstance(content, Mapping) and isinstance(content.get(holder), Mapping):
            content, prefixes = content[holder], PREFIXES
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: there are no named tensors in it.", fix)
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    for prefix in prefixes:
        inner = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        tensors = inner or tensors
    return WeightsFile(path, {n: v for n, v in tensors.items() if not n.startswith("fc.")})


def load_weights(net: nn.Module, weights: WeightsFile, name: str) -> None:
    """Load a file into the network `name`.

    A missing tensor or one of another shape is a UserError, except for the classifier `fc` and
    `num_batches_tracked`. Tensors that the network does not have are ignored.
    """
    wrong, fix = (
        f"{weights.path}: these weights do not fit {name}:",
        "Check that name, and the file.",
    )
    try:
        result = net.load_state_dict(weights.tensors, strict=False)
    except RuntimeError as error:
        raise UserError(f"{wrong} {error}", fix) from error
    missing = [
        n for n in result.missing_keys if not n.endswith("num_batches_tracked") and n[:3] != "fc."
    ]
    unknown = result.unexpected_keys
    if missing and any(n.startswith("backbone.") for n in unknown):
        raise UserError(
            f"{weights.path}: it is a detector, not the weights of a backbone.",
            "To start from a trained detector, set base.checkpoint.",
        )
    if missing:
        lacking = f"missing tensors ({len(missing)}): {', '.join(missing[:3])}"
        more = f"; unknown tensors ({len(unknown)}): {', '.join(unknown[:3])}" if unknown else ""
        raise UserError(
            f"{wrong} {lacking}{more}.", "Name the tensors as torchvision (or timm) does."
        )
