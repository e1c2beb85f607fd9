"""Files of weights of backbones and discriminators: .safetensors, or .pth as PyTorch writes them.

Tensors have torchvision's or timm's names, bare or inside the checkpoint of a training script such
as MoCo v2's (`state_dict`, `module.encoder_q.`). Every file of weights is read here, downloaded
ones too. No code in a file is ever run, and memory stays in proportion to the file.
"""

from __future__ import annotations

import argparse
import errno
import io
import pickle
import warnings
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mini_fsod.errors import UserError
from mini_fsod.files import is_file
from mini_fsod.limits import PICKLE_BYTES, PICKLE_READS, TENSORS, WEIGHTS_BYTES

PICKLES = (".pth", ".pt", ".tar", ".bin")
SUFFIXES = (".safetensors", *PICKLES)

# Where training scripts store a network's weights, and the prefixes of the network wanted: the
# query encoder of MoCo v2, the base encoder of MoCo v3, the backbone of DINO
HOLDERS = ("state_dict", "model", "teacher")
PREFIXES = ("module.", "encoder_q.", "base_encoder.", "backbone.")

# Parts of a file that a backbone does not have: classifiers, and the heads of SwAV, DINO and MAE
HEADS = (
    "fc.", "head", "classifier.", "projection_head.", "projector.", "predictor.", "prototypes.",
    "decoder", "mask_token",
)  # fmt: skip


class WeightsFile(NamedTuple):
    """A file's path, for messages, and its tensors under the network's own names."""

    path: Path
    tensors: dict[str, Tensor]


def read_weights(path: Path, fix: str = "Check the path.") -> WeightsFile:
    """The tensors of a network, without a classifier or head `fc`; `fix` is for a wrong path."""
    if not is_file(path):
        raise UserError(f"{path}: there is no such weights file.", fix)
    try:
        refuse_large(path)
        content = _read_safetensors(path) if path.suffix == ".safetensors" else _unpickle(path)
    except pickle.UnpicklingError as error:
        if not any(word in str(error) for word in ("GLOBAL", "allowlisted", "unrecognized")):
            raise UserError(f"{path}: not a weights file, or damaged.", fix) from None
        raise UserError(
            f"{path}: the file contains more than tensors, and loading it could run code.",
            "Use a .safetensors file, or one of torch.save(model.state_dict(), ...).",
        ) from None
    except Exception as error:  # damaged files make torch raise anything
        known = isinstance(error, SafetensorError | OSError | ValueError)
        why = first_line(error) if known else type(error).__name__
        raise UserError(
            f"{path}: cannot be read as weights ({why}).", "Copy or fetch it again."
        ) from None
    # outside of a training script's checkpoint "backbone." is a part of a detector
    prefixes: Sequence[str] = PREFIXES[:-1]
    for holder in HOLDERS:
        if isinstance(content, Mapping) and isinstance(content.get(holder), Mapping):
            content, prefixes = content[holder], PREFIXES
    tensors: dict[str, Tensor] = {}
    if isinstance(content, Mapping):
        tensors = {n: v for n, v in content.items() if isinstance(n, str) and isinstance(v, Tensor)}
    for prefix in prefixes:
        inner = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        tensors = inner or tensors
    tensors = {name: value for name, value in tensors.items() if not name.startswith("fc.")}
    if not tensors:
        raise UserError(f"{path}: it has no named tensors.", fix)
    if len(tensors) > TENSORS:
        raise UserError(f"{path}: more than {TENSORS:,} tensors.", "Give the weights of a network.")
    odd = [name for name, value in tensors.items() if not is_in_memory(value)]
    if odd:
        raise UserError(
            f"{path}: sparse, quantised or incomplete tensors: {list_names(odd)}.",
            "Give a file of plain tensors: torch.save(model.state_dict(), ...).",
        )
    return WeightsFile(path, tensors)


def refuse_large(path: Path) -> None:
    """An OSError for a file that is larger than any network; nothing is read."""
    if path.stat().st_size > WEIGHTS_BYTES:
        raise OSError(errno.EFBIG, f"larger than {WEIGHTS_BYTES >> 20:,} MB")


def tensor_names(file: Any) -> list[str]:
    """The names in an open safetensors file; a ValueError if there are too many."""
    names: list[str] = file.keys()
    if len(names) > TENSORS:
        raise ValueError(f"more than {TENSORS:,} tensors")
    return names


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in tensor_names(file)}


class _LimitedFile(io.FileIO):
    """A pickle may be short reads without end, or one of gigabytes."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self._count(size)
        return super().read(size) or b""

    def readline(self, size: int | None = -1) -> bytes:
        self._count(0)
        return super().readline(PICKLE_BYTES)

    def _count(self, size: int | None) -> None:
        self.reads += 1
        if self.reads > PICKLE_READS or size is None or not -1 <= size <= PICKLE_BYTES:
            raise ValueError("its pickle is too long")


def _unpickle(path: Path) -> Any:
    """The content of a file of `torch.save`: tensors and plain values."""
    # training scripts store their arguments; a Namespace is harmless
    with (
        torch.serialization.safe_globals([argparse.Namespace]),
        warnings.catch_warnings(action="ignore"),
    ):
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"
        if not is_zip:
            with _LimitedFile(path) as file:
                return torch.load(file, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if any(
            entry.compress_type != zipfile.ZIP_STORED
            or (entry.filename.endswith(".pkl") and entry.file_size > PICKLE_BYTES)
            for entry in entries
        ):
            raise ValueError("its pickle is too long, or its parts are compressed")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def is_in_memory(value: Tensor) -> bool:
    """Whether the tensor has all its values in memory: sizes alone could stand for terabytes."""
    return (
        value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_nested or value.is_complex())
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def load_weights(
    net: nn.Module, weights: WeightsFile, name: str, unused: Collection[str] = ()
) -> None:
    """Load a file into the network `name`, all or nothing.

    A UserError names tensors that are missing, unknown, of another shape or kind, or not finite.
    Not so the classifier `fc`, `num_batches_tracked`, `HEADS`, and the names `unused`.
    """
    wanted = net.state_dict()
    tensors = {n: value for n, value in weights.tensors.items() if n in wanted}
    missing = [n for n in wanted if n not in tensors and n[:3] != "fc." and n[-8:] != "_tracked"]
    unknown = [
        n
        for n in weights.tensors
        if not (n in wanted or n in unused or n.startswith(HEADS) or n[-8:] == "_tracked")
    ]
    if missing and any(n.startswith("backbone.") for n in unknown):
        raise UserError(
            f"{weights.path}: it is a detector, not the weights of a backbone.",
            "To start from a trained detector, set base.checkpoint.",
        )
    shapes = [
        f"{n} {_shape(value)} instead of {_shape(wanted[n])}"
        for n, value in tensors.items()
        if value.shape != wanted[n].shape
    ]
    kinds = [
        f"{n} ({value.dtype})"
        for n, value in tensors.items()
        if wanted[n].is_floating_point() and not value.is_floating_point()
    ]
    wrong = {
        "missing tensors": missing,
        "unknown tensors": unknown,
        "other shapes": shapes,
        "no floating-point numbers": kinds,
    }
    if not any(wrong.values()):
        wrong["NaN, infinite or negative variances"] = [
            n for n, value in tensors.items() if not _is_usable(n, value, wanted[n])
        ]
    if any(wrong.values()):
        listed = [
            f"{what} ({len(names)}): {list_names(names)}" for what, names in wrong.items() if names
        ]
        raise UserError(
            f"{weights.path}: these weights do not fit {name}: {'; '.join(listed)}.",
            "Use the weights of exactly this model, with tensor names of torchvision (or timm).",
        )
    net.load_state_dict(tensors, strict=False)


def _shape(value: Tensor) -> str:
    return f"{tuple(value.shape)}"


def _is_usable(name: str, value: Tensor, wanted: Tensor) -> bool:
    value = value.to(wanted.dtype)
    usable = value.isfinite().all() and not (name.endswith("running_var") and (value < 0).any())
    return bool(usable)


def list_names(names: Iterable[str]) -> str:
    """The first three, shortened, for a message."""
    names = list(names)
    return ", ".join(n[:60] for n in names[:3]) + ", ..." * (len(names) > 3)


def first_line(error: Exception) -> str:
    """What torch or a library says, at most 200 characters of it."""
    text = getattr(error, "strerror", None) or str(error)
    return (text.strip() or type(error).__name__).splitlines()[0].rstrip(".:")[:200]
