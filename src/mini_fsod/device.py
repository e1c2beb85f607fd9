"""The device to compute on, and its memory."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

from mini_fsod import console
from mini_fsod.errors import UserError

# Linux: what a process uses, and where it sets the peak back (proc(5))
STATUS, CLEAR_REFS, RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs"), "5"
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


def device_memory(device: torch.device) -> int:
    """Bytes of memory that the GPU has, else the computer."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reset_peak_memory(device: torch.device) -> None:
    """Start to measure `peak_memory` anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text(RESET_PEAK)


def peak_memory(device: torch.device) -> int:
    """The most bytes of memory since the last reset: of the GPU, else of this process.

    Where the system cannot reset it (not Linux), since the process started.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return 1024 * int(lines["VmHWM"].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
