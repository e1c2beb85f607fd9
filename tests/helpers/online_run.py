"""The stage `online` by itself, on coloured shapes (`helpers.shapes`), with a hand-made pool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from helpers import shapes
from helpers.tiny_run import config, hidden_boxes
from mini_fsod.labels import LabelMap
from mini_fsod.online.retrain import online
from mini_fsod.runs.data import RunData
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import Team
from mini_fsod.train.log import read_log

CPU = torch.device("cpu")
LABELS = LabelMap(("red", "green"), (shapes.NOVEL,))
TEACHER = {"online__iterations": 12, "online__ema": 0.8, "online__delta": 0.2}  # finds boxes early
NO_TEACHER = {"online__teacher": "false", "online__iou_branch": "false"}

Box = dict[str, Any]


def mixed_pool(data: Path) -> list[Box]:
    """Three hidden boxes, and two wrong ones, with scores from 0.9 down."""
    return [
        box | {"bbox": box["bbox"] if n < 3 else [1, 2, 20, 16], "score": 0.9 - n / 10}
        for n, box in enumerate(hidden_boxes(data))
    ]


def write_pool(path: Path, data: Path, boxes: Sequence[Box]) -> Path:
    """The images of the training set with these boxes, as COCO."""
    content = shapes.json_of(data / "annotations" / "train.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | {"annotations": [*boxes]}))
    return path


def run_of(data: Path, folder: Path, boxes: Sequence[Box] | None = None, **changes: object) -> Run:
    """A run whose finished stages lie in `folder`; a pool of these boxes, or the one that is there.

    The data must be written by `shapes.write_data`.
    """
    if boxes is not None:
        write_pool(folder / "pool.json", data, boxes)
    (folder / "mine").mkdir(parents=True, exist_ok=True)
    settings = config(data, **changes)
    return Run(
        settings,
        RunData(settings, CPU),
        CPU,
        Team(),
        lambda stage: folder / stage,
        folder / "pool.json",
        folder / "pool-extra.json",
    )


def trained(run: Run, folder: Path) -> bytes:
    """The checkpoint that `online` leaves in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    online(run, folder)
    return (folder / "checkpoint.safetensors").read_bytes()


def log_of(folder: Path) -> list[dict[str, Any]]:
    return read_log(folder / "log.jsonl")
