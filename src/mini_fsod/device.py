"""The device to compute on."""

from __future__ import annotations

import torch

from mini_fsod import console
from mini_fsod.errors import UserError

# what a CPU must have for bfloat16 to be faster than float32, as PyTorch names it
BF16_UNITS = ("avx512_bf16", "amx_bf16")

FIX = "Use auto, cpu, cuda or cuda:N."


def fast_bf16(device: torch.device) -> bool:
    """Whether the device has units for bfloat16: every CUDA GPU we support, and newer CPUs."""
    if device.type == "cuda":
        return True
    units = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(units.get(name, False) for name in BF16_UNITS)


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
