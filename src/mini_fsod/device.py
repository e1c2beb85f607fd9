"""Which device to compute on."""

from __future__ import annotations

import torch

from mini_fsod import console
from mini_fsod.errors import UserError

KNOWN = "Take auto, cpu, cuda or cuda:1."


def torch_device(name: str) -> torch.device:
    """auto: the first GPU that CUDA knows, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f'There is no device "{name}".', KNOWN) from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"{name} cannot be used.", KNOWN)
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(f"There is no device {name}; {console.count(gpus, 'GPU')} found.", KNOWN)
    return device
