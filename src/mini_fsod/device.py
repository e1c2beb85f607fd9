"""The device to compute on."""

from __future__ import annotations

import torch

from mini_fsod import console
from mini_fsod.errors import UserError

FIX = "Use auto, cpu, cuda or cuda:N."


def torch_device(name: str) -> torch.device:
    """The device of this name; auto: the first CUDA GPU, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f'There is no device "{name}".', FIX) from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"Device {name} is not supported.", FIX)
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(f"There is no device {name}; {console.count(gpus, 'GPU')} found.", FIX)
    return device
