"""The data of a run on coloured shapes (`helpers.shapes`), without the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from helpers.shapes import NOVEL
from mini_fsod.config.schema import Config
from mini_fsod.runs.data import RunData

CPU = torch.device("cpu")


def run_data(root: Path, device: torch.device = CPU, **changes: Any) -> RunData:
    """`data__metric="coco"` sets the key data.metric."""
    keys: dict[str, dict[str, Any]] = {
        "data": {"root": root, "cache": root.parent / "cache", "novel": [NOVEL], "metric": "voc"},
        "detector": {"anchors": [8, 16, 32, 64, 128]},
        "views": {"short": [48, 64], "long": 96, "test": 64},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        keys.setdefault(section, {})[key] = value
    return RunData(Config.model_validate(keys), device)
