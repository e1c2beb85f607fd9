"""A run up to `mine` on the data of small.py: settings, the stage again, and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mini_fsod.config.load import Config, resolve
from mini_fsod.detector.backbone import NARROW, make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.runs import stages
from runs import small

FILES = ("candidates.json", "thresholds.json", "pool.json", "audit.json")


def write_discriminator(path: Path, seed: int = 0) -> Path:
    """A narrow ResNet of random weights, as torchvision writes it."""
    torch.manual_seed(seed)
    state = make_backbone(BackboneSettings(NARROW, "group")).state_dict()
    for name in [name for name in state if name.endswith("bias")]:  # a norm's
        state[name.replace("bias", "running_mean")] = torch.zeros_like(state[name])
        state[name.replace("bias", "running_var")] = torch.ones_like(state[name])
    save_file(state, path)
    return path


def changes_of(data: Path, **changes: object) -> dict[str, object]:
    return {
        "mine__discriminator": data.parent / "narrow.safetensors",
        "mine__discriminator_short_side": 96,
        "mine__cut": 0.01,  # a detector of a few iterations is sure of nothing
        **changes,
    }


def config(data: Path, **changes: object) -> Config:
    (data.parent / "small.yaml").touch()
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **changes_of(data, **changes)))


def again(data: Path, out: Path, **changes: object) -> dict[str, Any]:
    return stages.run(config(data, **changes), out, first="mine", last="mine")["stages"]["mine"]


def load(out: Path, name: str) -> Any:
    return json.loads((out / "mine" / name).read_bytes())
